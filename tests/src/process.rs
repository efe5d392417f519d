//! Child processes of a test: started with a clean environment, ended by their id when dropped.

use std::{
    ffi::OsStr,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};

use crate::{
    env,
    eventually::{eventually, soon},
};

/// A running program and what it has printed.
pub struct Process {
    child: Child,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
    collecting: Vec<JoinHandle<()>>,
    /// The home folder it sees; kept as long as it runs.
    _home: Arc<TempDir>,
}

/// A program of this workspace, built beside the test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("tests lie in target/PROFILE/deps");
    let path = folder.join(name);
    assert!(path.exists(), "{} is not built: run `cargo build --bins` first, or `make test`", path.display());
    path
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is a member").to_owned()
}

pub fn home() -> Arc<TempDir> {
    Arc::new(TempDir::new().expect("a temporary folder"))
}

/// In memory where the system has such a place: for programs that wait for their disk, which others use as well.
pub fn quick_home() -> Arc<TempDir> {
    TempDir::new_in("/dev/shm").map_or_else(|_| home(), Arc::new)
}

impl Process {
    /// Starts `program` with nothing of our environment but PATH, and `home` as its home.
    pub fn start<A: AsRef<OsStr>>(
        program: PathBuf,
        arguments: impl IntoIterator<Item = A>,
        environment: &[(&str, String)],
        home: Arc<TempDir>,
    ) -> Self {
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", env("PATH").unwrap_or_default())
            .env("HOME", home.path())
            .env("RUST_BACKTRACE", "1")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let (stdout, out) = collect(child.stdout.take().expect("piped"));
        let (stderr, err) = collect(child.stderr.take().expect("piped"));
        Self { child, stdout, stderr, collecting: vec![out, err], _home: home }
    }

    pub fn id(&self) -> u32 {
        self.child.id().expect("the process runs")
    }

    pub fn stdout(&self) -> Vec<String> {
        self.stdout.lock().expect("not poisoned").clone()
    }

    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lock().expect("not poisoned").clone()
    }

    /// Waits for a line of standard output that `pick` takes.
    pub async fn line<T>(&self, what: &str, pick: impl Fn(&str) -> Option<T>) -> T {
        let mut found = None;
        eventually(&format!("{what} on standard output"), || {
            found = self.stdout().iter().find_map(|line| pick(line));
            let found = found.is_some();
            async move { found }
        })
        .await;
        found.unwrap_or_else(|| panic!("{what}"))
    }

    /// Waits until a line of standard error holds `words`.
    pub async fn complains(&self, words: &str) {
        eventually(&format!("`{words}` on standard error"), || {
            let found = self.stderr().iter().any(|line| line.contains(words));
            async move { found }
        })
        .await;
    }

    /// The exit code; by then everything it printed has been read.
    pub async fn exit(&mut self) -> i32 {
        let status = soon("the process ends", self.child.wait()).await.expect("it can be waited for");
        for collecting in self.collecting.drain(..) {
            soon("its output ends", collecting).await.expect("output is read");
        }
        status.code().unwrap_or(-1)
    }

    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_some()
    }

    /// `TERM`, `INT`, `STOP`, `CONT`, `KILL`
    pub fn signal(&self, name: &str) {
        let sent =
            std::process::Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        assert!(sent.expect("kill runs").success(), "could not send {name}");
    }

    /// Resident memory in KiB.
    pub fn memory(&self) -> usize {
        self.status("VmRSS:")
    }

    /// The most it ever was.
    pub fn peak_memory(&self) -> usize {
        self.status("VmHWM:")
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).expect("it runs").count()
    }

    fn status(&self, field: &str) -> usize {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a known field");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

fn collect(from: impl AsyncRead + Unpin + Send + 'static) -> (Arc<Mutex<Vec<String>>>, JoinHandle<()>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    let task = tokio::spawn(async move {
        let mut from = BufReader::new(from).lines();
        while let Ok(Some(line)) = from.next_line().await {
            sink.lock().expect("not poisoned").push(line);
        }
    });
    (lines, task)
}
