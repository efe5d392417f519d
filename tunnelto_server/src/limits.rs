//! Every limit with its unit and its reason. What an operator may change is a setting and not here.

use std::time::Duration;

/// The longest head of a request or answer, in bytes. RFC 9112 section 3 recommends at least 8,000 for the request
/// line alone; cookies and tokens fill the rest.
pub const MAX_HEAD: usize = 64 * 1024;

/// Header fields in one head.
pub const MAX_FIELDS: usize = 256;

/// From a visitor's first byte to the end of its head: slow links finish, dripping ones give up their slot.
pub const HEAD_TIME: Duration = Duration::from_secs(20);

/// From a visitor's connection to its first byte: browsers connect ahead, but whoever says nothing gives up its slot.
pub const FIRST_BYTE: Duration = Duration::from_secs(60);

/// A kept visitor connection without a request.
pub const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// A visitor that neither sends nor reads while its exchange needs it: a paused film survives, a vanished
/// machine does not hold memory for ever.
pub const VISITOR_STALL: Duration = Duration::from_secs(600);

/// Interim answers before one final answer: more is a broken service.
pub const MAX_INTERIM: usize = 32;

/// From the end of a request to the first byte of its answer, and between two pieces of one. Long polls are common, so
/// this is long; event streams may be silent for as long as their visitor stays.
pub const ANSWER_TIME: Duration = Duration::from_secs(600);

/// Silence that ends a close-delimited answer of a protocol 1 client, which never says that its local service
/// has closed.
pub const PROTOCOL_1_SILENCE: Duration = Duration::from_secs(5);

/// After a visitor of an upgraded connection has finished, how long a protocol 1 client's service may still answer: nobody
/// will say that it has closed.
pub const PROTOCOL_1_LINGER: Duration = Duration::from_secs(10);

/// From a client's End to its Reset `unused`, which follows when a request has crossed the End.
pub const CROSSING: Duration = Duration::from_secs(2);

/// Bytes of later requests that are read while one is answered, to notice that the visitor has left.
pub const READ_AHEAD: usize = 64 * 1024;

/// How often a probed client is looked at for a sign of life.
pub const PROBE_LOOK: Duration = Duration::from_millis(100);

/// Reading on after an answer that came before the end of its request, so that the visitor reads the answer
/// instead of a reset.
pub const LINGER: Duration = Duration::from_secs(5);

/// Bytes read and thrown away meanwhile.
pub const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// The largest request that is repeated when a reused stream turns out to be dead, in bytes.
pub const REPLAY: usize = 64 * 1024;

/// How often one request is tried on another stream.
pub const MAX_TRIES: usize = 3;

/// An idle stream is reused for this long: most local services keep a connection for 5 s or more.
pub const IDLE_STREAM: Duration = Duration::from_secs(2);

/// A local service that hangs up after its answer without having said so has done it by then, and its word has come.
pub const SETTLED: Duration = Duration::from_millis(100);

/// Idle streams kept per connection.
pub const MAX_IDLE_STREAMS: usize = 256;

/// Shards: more threads than any machine has cores for.
pub const MAX_WORKERS: usize = 1024;

/// Visitor connections at once: below the descriptors that most systems grant after raising the soft limit.
pub const MAX_VISITORS: usize = 16_384;

/// Client connections at once.
pub const MAX_CLIENTS: usize = 16_384;

/// Connections from other instances and their health checks.
pub const MAX_PEERS: usize = 4096;

/// How long a stopping server waits for visitors that keep idle connections: who comes back by then is told to connect anew.
pub const KEPT_NOTICE: Duration = Duration::from_secs(1);

/// How long sessions may take to say goodbye at the end.
pub const GOODBYE: Duration = Duration::from_secs(2);

/// Streams that a client of protocol 1 is given at once; a client of protocol 2 says its own number.
pub const PROTOCOL_1_STREAMS: usize = 4096;

/// From the upgrade to the client's hello.
pub const HELLO_TIME: Duration = Duration::from_secs(10);

/// The head of a request to the control port.
pub const CONTROL_HEAD_TIME: Duration = Duration::from_secs(10);

/// Bytes of that head: room for the longest proxy-added fields, too little to burn time on.
pub const CONTROL_HEAD: usize = 32 * 1024;

/// How long the holder of a name has to show life when its owner asks for the name again.
pub const PROBE_TIME: Duration = Duration::from_secs(5);

/// How long a connection whose client is connected anew may take to show that it lives and finishes what is open.
pub const REPLACED_LIFE: Duration = Duration::from_secs(2);

/// How long a protocol 1 client may finish what is open before it is sent to another instance: its visitors wait meanwhile,
/// within their grace.
pub const PROTOCOL_1_FINISH: Duration = Duration::from_secs(3);

/// How often a connection that is out of use is looked at for open streams.
pub const LAST_LOOK: Duration = Duration::from_millis(50);

/// How long a claim waits for another owner's to be decided: all questions and the sign of life that may follow.
pub const UNDECIDED: Duration = Duration::from_secs(10);
pub const UNDECIDED_LOOK: Duration = Duration::from_millis(50);

/// Time between Pings: protocol 1 as the original, protocol 2 so that a dead line is noticed within a minute.
pub const PING_PROTOCOL_1: Duration = Duration::from_secs(30);
pub const PING_PROTOCOL_2: Duration = Duration::from_secs(15);

/// Pings in a row without any byte from the client after which it counts as dead.
pub const MISSED_PINGS: u32 = 3;

/// Unacknowledged bytes on a tunnel's socket end it after this long.
pub const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

/// Visitors parked for one name, and in all.
pub const MAX_PARKED_NAME: usize = 100;
pub const MAX_PARKED: usize = 2000;

/// How often a parked visitor looks for its tunnel on other instances, whose word may not come by itself.
pub const PARKED_LOOK: Duration = Duration::from_millis(250);

/// One question to another instance, and all questions about one name.
pub const QUESTION_TIME: Duration = Duration::from_secs(2);

/// Opening a connection to another instance on a private network.
pub const PEER_CONNECT: Duration = Duration::from_millis(500);

/// From the hop's first bytes to the byte that says whose the tunnel is.
pub const HOP_ANSWER: Duration = Duration::from_secs(2);

/// How often one request looks for the instance that serves its tunnel.
pub const MAX_LOOKS: usize = 2;

/// How far the clocks of two instances may differ, and how long what one has signed may be on its way.
pub const SIGNED_LIFE: Duration = Duration::from_secs(60);

/// How often each instance asks the others for what is new.
pub const NEWS_EVERY: Duration = Duration::from_secs(1);

/// Names in one answer to that, and bytes of an answer.
pub const NEWS_NAMES: usize = 10_000;
pub const MAX_PEER_ANSWER: usize = 8 * 1024 * 1024;

/// A name that other instances said they have, and that nobody has.
pub const KNOW_YES: Duration = Duration::from_secs(10);
pub const KNOW_NO: Duration = Duration::from_secs(1);

/// Names of which either is remembered at once.
pub const MAX_KNOWN: usize = 65_536;

/// What an instance is said to have is asked for again, for so long after it turned out to be wrong.
pub const DOUBT: Duration = Duration::from_secs(2);

/// Names that are asked for at once: visitors may make names up faster than they can be asked for.
pub const MAX_LOOKUPS: usize = 1024;

/// Questions to other instances at once while what is new is fetched.
pub const NEWS_AT_ONCE: usize = 64;

/// One question to the store, and how soon it is tried again when it is away.
pub const STORE_TIME: Duration = Duration::from_secs(2);
pub const STORE_AGAIN: Duration = Duration::from_secs(1);

/// For each instance that is listed, how long it takes until all are listed again: thousands come and go all the time, and one
/// that is not listed yet is looked up by itself.
pub const LIST_PAUSE: Duration = Duration::from_millis(10);

/// How long an instance is heard and asked that has said that what it holds is not all in the store: it repeats that with
/// its questions once a second.
pub const WITHOUT_STORE: Duration = Duration::from_secs(3);

/// Names that are written down at once.
pub const STORE_AT_ONCE: usize = 64;

/// How long the page of a name is kept in a store that does not know leases; each is written anew three times in that.
pub const PAGE_LIFE: Duration = Duration::from_secs(3600);

/// How often a claim is weighed anew because others have written down the same name meanwhile.
pub const CLAIM_TRIES: usize = 16;

/// The longest first message of TLS, in bytes: post-quantum keys and tickets fill a few thousand.
pub const MAX_TLS_HELLO: usize = 32 * 1024;

/// A hop's first bytes, in bytes: addresses and what is signed fill a few hundred.
pub const MAX_HOP_HEAD: usize = 4096;

/// Visitors at once that one other instance is brought.
pub const PEER_HOPS: usize = 4096;

/// Life of a reconnect token; each Ping brings a fresh one.
pub const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Pause after a failed accept (no descriptors left): long enough for some to come free.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// HTTP/2: concurrent requests per connection, as most servers.
pub const H2_STREAMS: u32 = 250;

/// HTTP/2: receive window per request and per connection, in bytes.
pub const H2_WINDOW: u32 = 256 * 1024;
pub const H2_CONNECTION_WINDOW: u32 = 1024 * 1024;
