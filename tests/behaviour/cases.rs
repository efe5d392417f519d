//! The black-box cases of tests/cases, each on a stack of its own. t34 waits for TCP tunnels.

use std::fs;

use tests::{
    client::Client,
    part,
    process::{Process, home, workspace},
    server::Server,
};
use tokio::{net::TcpListener, sync::Mutex};

/// The scripts measure time, so they run one after the other.
static TURN: Mutex<()> = Mutex::const_new(());

/// Runs one script against a fresh server and client.
async fn case(name: &str) {
    let _turn = TURN.lock().await;
    let Some(python) = part::command("python3", "the cases") else { return };
    let backend = {
        // The script listens here itself, again and again.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    let server = Server::start().await;
    let client = Client::start(&server, &[&format!("127.0.0.1:{backend}"), "-s", "demo"]);
    client.url().await;
    let environment = [
        ("EDGE", server.visitors.to_string()),
        ("HOST", "demo.localhost".to_owned()),
        ("BACKEND_PORT", backend),
    ];
    let script = workspace().join("tests/cases").join(format!("{name}.py"));
    let arguments = ["-B".into(), script.into_os_string()];
    let mut run = Process::start(python, arguments, &environment, home());
    let code = run.exit().await;
    assert_eq!(code, 0, "{name}: {}", run.stdout().join("\n"));
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        $(#[tokio::test] async fn $name() { case(stringify!($name)).await })*

        #[test]
        fn no_case_is_forgotten() {
            let entries = fs::read_dir(workspace().join("tests/cases")).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut scripts: Vec<_> =
                names.filter_map(|name| Some(name.strip_suffix(".py")?.to_owned())).filter(|name| name != "caselib").collect();
            scripts.sort();
            let mut known = vec![$(stringify!($name)),*];
            known.push("t34_tcp_half_close");
            known.sort();
            assert_eq!(scripts, known);
        }
    };
}

cases!(
    t01_head_split,
    t02_keepalive_host_switch,
    t03_upload_stream,
    t04_stream_response,
    t05_chunked_upload,
    t06_content_length_zero,
    t07_expect_continue,
    t08_bodiless_answers,
    t09_ws_subprotocol_close,
    t13_framing_smuggle,
    t15_early_refusal_upload,
    t17_host_forms,
    t19_bad_host,
    t20_repeated_headers,
    t21_large_heads,
    t22_url_bytes,
    t23_half_close,
    t25_backend_down,
    t27_slow_peer,
    t28_many_streams,
    t31_slow_heads,
    t32_forwarded_for,
);
