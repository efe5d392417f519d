//! Questions from other instances: who is here, what is new, and is this instance well?

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Instant, SystemTime},
};

use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use tunnelto_lib::name::{Hostname, Label};
use warp::{Filter, Reply, filters::BoxedFilter, path::FullPath, reply::Response};

use super::{
    Directory, health,
    peer::Introduction,
    question::{
        About, CertificateAnswer, NameAnswer, NewsAnswer, QUESTION_FIELD, Question, SIGNATURE_FIELD,
        SignedName, Unsigned,
    },
};
use crate::{
    connected_clients::{ConnectedClients, any_alive},
    limits::NEWS_NAMES,
    serving,
    shutdown::Shutdown,
    sign::MasterKeys,
    socket::Socket,
    tls::source::Source,
};

#[derive(Clone)]
pub struct PeerServer {
    routes: BoxedFilter<(Response,)>,
}

/// What answers need.
pub struct Answering {
    pub clients: Arc<ConnectedClients>,
    pub directory: Directory,
    pub introduction: Introduction,
    pub keys: MasterKeys,
    pub shutdown: Shutdown,
    /// `None`: TLS is not spoken here.
    pub certificates: Option<Source>,
}

#[derive(Deserialize)]
struct NameQuery {
    host: Option<String>,
}

#[derive(Deserialize)]
struct CertificateQuery {
    host: String,
}

#[derive(Deserialize)]
struct NewsQuery {
    since: u64,
    life: Option<u64>,
    goes_on: Option<u8>,
}

/// A question as it came.
struct Asked {
    peer: SocketAddr,
    path: String,
    sealed: Option<String>,
}

impl PeerServer {
    pub fn new(answering: Answering) -> Self {
        let health = health::route(answering.shutdown.clone());
        let answering = Arc::new(answering);
        let with = |answering: &Arc<Answering>| {
            let answering = answering.clone();
            warp::any().map(move || answering.clone())
        };
        let name = warp::path::end()
            .and(warp::get())
            .and(asked())
            .and(warp::query::<NameQuery>())
            .and(with(&answering))
            .then(|asked: Asked, query: NameQuery, answering: Arc<Answering>| async move {
                answering.name(&asked, query).await.unwrap_or_else(refuse)
            });
        let news = warp::path!("claims")
            .and(warp::get())
            .and(asked())
            .and(warp::query::<NewsQuery>())
            .and(with(&answering))
            .map(|asked: Asked, query: NewsQuery, answering: Arc<Answering>| {
                answering.news(&asked, &query).unwrap_or_else(refuse)
            });
        let certificate = warp::path!("certificate")
            .and(warp::get())
            .and(asked())
            .and(warp::query::<CertificateQuery>())
            .and(with(&answering))
            .map(|asked: Asked, query: CertificateQuery, answering: Arc<Answering>| {
                answering.certificate(&asked, &query).unwrap_or_else(refuse)
            });
        Self { routes: name.or(news).unify().or(certificate).unify().or(health).unify().boxed() }
    }

    pub async fn serve(self, socket: Socket, peer: SocketAddr) {
        serving::serve(&serving::http1(), self.routes, socket, peer).await;
    }
}

fn asked() -> impl Filter<Extract = (Asked,), Error = warp::Rejection> + Clone {
    let query = warp::query::raw().or(warp::any().map(String::new)).unify();
    warp::ext::get::<SocketAddr>().and(warp::path::full()).and(query).and(warp::header::headers_cloned()).map(
        |peer, path: FullPath, query: String, headers: HeaderMap| {
            let path =
                if query.is_empty() { path.as_str().into() } else { format!("{}?{query}", path.as_str()) };
            let sealed = headers.get(QUESTION_FIELD).and_then(|value| value.to_str().ok()).map(str::to_owned);
            Asked { peer, path, sealed }
        },
    )
}

impl Answering {
    /// Only for what this instance holds itself. People on this machine may ask without a signature.
    async fn name(&self, asked: &Asked, query: NameQuery) -> Result<Response, Unsigned> {
        let name = query.host.and_then(|host| Label::parse(&host).ok());
        let client_id = name.as_ref().and_then(|name| self.clients.client_id(name)).map(|id| id.to_string());
        if asked.sealed.is_none() && asked.peer.ip().is_loopback() {
            return Ok(warp::reply::json(&NameAnswer { client_id, signed: None }).into_response());
        }
        let question = self.open(asked)?;
        let now = Instant::now();
        if let (Some(About::Claim(theirs)), Some(name)) = (&question.about, &name)
            && question.from != self.introduction.instance
        {
            self.directory.heal(name, theirs, &question.from);
            if question.by_store {
                self.directory.write_again(name);
            }
        }
        let alive = match (&question.about, &name) {
            (Some(About::Life), Some(name)) => Some(any_alive(&self.clients.members(name)).await),
            _ => None,
        };
        let held = name.and_then(|name| self.clients.held(&name, now));
        let signed = SignedName { introduction: self.introduction(), held, alive };
        Ok(self.sign(&question, &NameAnswer { client_id, signed: Some(signed) }))
    }

    fn news(&self, asked: &Asked, query: &NewsQuery) -> Result<Response, Unsigned> {
        let question = self.open(asked)?;
        // Numbers of a former life mean nothing.
        let same_life = query.life == Some(self.introduction.life);
        let since = if same_life { query.since } else { 0 };
        let goes_on = same_life && query.goes_on == Some(1);
        let news = self.clients.news(since, goes_on, NEWS_NAMES).unwrap_or_default();
        let now = Instant::now();
        let held = |name: Label| {
            let held = self.clients.held(&name, now);
            (name, held)
        };
        let answer = NewsAnswer {
            introduction: self.introduction(),
            from_start: news.from_start,
            claims: news.names.into_iter().map(held).collect(),
            next: news.next,
            has_more: news.has_more,
        };
        Ok(self.sign(&question, &answer))
    }

    fn certificate(&self, asked: &Asked, query: &CertificateQuery) -> Result<Response, Unsigned> {
        let question = self.open(asked)?;
        let Ok(host) = Hostname::parse(&query.host) else {
            return Ok(StatusCode::BAD_REQUEST.into_response());
        };
        let word = self.certificates.as_ref().map(|source| source.word(&host)).unwrap_or_default();
        let answer = CertificateAnswer::new(self.introduction(), &host, &word, &self.keys);
        Ok(self.sign(&question, &answer))
    }

    fn introduction(&self) -> Introduction {
        Introduction { draining: self.shutdown.is_draining(), ..self.introduction.clone() }
    }

    fn open(&self, asked: &Asked) -> Result<Question, Unsigned> {
        let sealed = asked.sealed.as_deref().ok_or(Unsigned::Missing)?;
        let question = Question::open(&self.keys, sealed, &asked.path, SystemTime::now())
            .inspect_err(|why| tracing::warn!(peer = %asked.peer, %why, "question refused"))?;
        if question.without_store {
            self.directory.is_without_store(&question.from);
        }
        Ok(question)
    }

    fn sign(&self, question: &Question, answer: &impl Serialize) -> Response {
        let body = serde_json::to_vec(answer).unwrap_or_default();
        let signature = question.sign_answer(&self.keys, &body);
        let reply = warp::reply::with_header(body, header::CONTENT_TYPE, "application/json");
        warp::reply::with_header(reply, SIGNATURE_FIELD, signature).into_response()
    }
}

fn refuse(why: Unsigned) -> Response {
    warp::reply::with_status(why.to_string(), StatusCode::UNAUTHORIZED).into_response()
}
