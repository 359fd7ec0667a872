//! The live view: the page of a recording that goes on, served to a browser on the same machine.
//!
//! Anybody on a machine can open a connection to it, and any page in a browser can try to; so whoever wants to see something
//! must know the token in the address, must have come by a name of this machine (`Host`), and must not be another site's page
//! (`Origin`). Only the loopback interface is listened on. A forwarded port works, because the port of `Host` does not matter.
//!
//! The page is made of the profile's file when it is asked for, up to the last step that is complete. It is told of new steps by
//! server-sent events, and is loaded again when its reader wants that. Connections are few and short: at most
//! [`MOST_CONNECTIONS`] at a time, each with a limit on its request and on the time that it may take to send it.
//!
//! What this refuses to do: it serves nothing but that page and its events, and it never makes the run wait.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::page::Page;
use crate::profile::Profile;

/// How many connections may be open at a time.
const MOST_CONNECTIONS: usize = 8;
/// How long a request may be.
const MOST_REQUEST: usize = 8192;
/// How long a browser may take to send one, or to take an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a page that waits for events is written to, so that one that is gone is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Serves the page of a recording until it is dropped.
#[derive(Debug)]
pub struct LiveView {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    profile: PathBuf,
    token: String,
    n_connections: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    step: u64,
    has_ended: bool,
}

impl LiveView {
    /// Serves the profile that is being recorded in a file, on a port of the loopback interface; zero is any that is free.
    ///
    /// # Errors
    /// A port that is taken; a system that starts no thread.
    pub fn start(profile: &Path, port: u16) -> io::Result<LiveView> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let shared = Arc::new(Shared {
            profile: profile.to_owned(),
            token: token(),
            n_connections: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let view = LiveView { address: listener.local_addr()?, shared: shared.clone() };
        thread::Builder::new().name("live view".to_owned()).spawn(move || serve(&listener, &shared))?;
        Ok(view)
    }

    /// The address to open, with the token.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.shared.token)
    }

    /// Tells whoever looks that a step has ended.
    pub fn step(&self, step: u64) {
        self.shared.lock().step = step;
        self.shared.changed.notify_all();
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.changed.notify_all();
        // Wakes the thread that waits for a connection, which then sees that it is over.
        drop(TcpStream::connect_timeout(&self.address, TIMEOUT));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 128 bits that nobody can guess: the keys of a `RandomState` come from the system.
fn token() -> String {
    let half = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", half(), half())
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.lock().has_ended {
            return;
        }
        let Ok(stream) = connection else { continue };
        if shared.n_connections.fetch_add(1, Ordering::AcqRel) >= MOST_CONNECTIONS {
            shared.n_connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let own = shared.clone();
        let answered = thread::Builder::new().name("live view".to_owned()).spawn(move || {
            // A browser that goes away in the middle is nobody's error.
            let _gone = answer(stream, &own);
            own.n_connections.fetch_sub(1, Ordering::AcqRel);
        });
        if answered.is_err() {
            shared.n_connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let head = read_head(&mut stream)?;
    match requested(&head, &shared.token) {
        Err(status) => respond(&mut stream, status, "text/plain", "", status.as_bytes()),
        Ok(What::Events) => send_events(&mut stream, shared),
        Ok(What::Page) => match Profile::read(&shared.profile).and_then(|profile| Page::of(&profile)) {
            Ok(page) => {
                let page = page.live();
                let policy = format!("Content-Security-Policy: {}\r\n", page.policy());
                respond(&mut stream, "200 OK", "text/html; charset=utf-8", &policy, page.to_html().as_bytes())
            }
            Err(error) => {
                let said = format!("there is nothing to see yet: {error}");
                respond(&mut stream, "503 Service Unavailable", "text/plain", "", said.as_bytes())
            }
        },
    }
}

/// What a request may ask for.
#[derive(Debug, PartialEq, Eq)]
enum What {
    Page,
    Events,
}

/// The lines of a request up to the empty one.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part)? {
            n if n > 0 && head.len() + n <= MOST_REQUEST => head.extend(&part[..n]),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// What is asked for, or why it is refused.
fn requested(head: &str, token: &str) -> Result<What, &'static str> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    if words.next() != Some("GET") {
        return Err("405 Method Not Allowed");
    }
    let path = words.next().unwrap_or_default();
    let headers: Vec<(String, &str)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
        .collect();
    let values =
        |name: &'static str| headers.iter().filter(move |(known, _)| known == name).map(|(_, value)| *value);
    let hosts: Vec<&str> = values("host").collect();
    let is_ours = |origin: &str| origin.strip_prefix("http://").is_some_and(is_loopback);
    if hosts.len() != 1 || !is_loopback(hosts[0]) || !values("origin").all(is_ours) {
        return Err("403 Forbidden");
    }
    let Some(rest) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Err("404 Not Found");
    };
    match (same(rest.0, token), rest.1) {
        (false, _) => Err("404 Not Found"),
        (true, "") => Ok(What::Page),
        (true, "events") => Ok(What::Events),
        (true, _) => Err("404 Not Found"),
    }
}

/// Whether a host is this machine, whatever its port: a forwarded one has another.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "127.0.0.1" | "localhost" | "[::1]")
}

/// Whether two texts are the same, in a time that does not tell how far they are.
fn same(asked: &str, token: &str) -> bool {
    asked.len() == token.len() && asked.bytes().zip(token.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn respond(stream: &mut TcpStream, status: &str, kind: &str, more: &str, body: &[u8]) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{more}{COMMON_HEADERS}Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    stream.flush()
}

/// What every answer says: keep nothing, tell nobody, guess nothing, show it in no frame.
const COMMON_HEADERS: &str = "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n";

/// Tells a page of steps until it is gone or the run is over.
fn send_events(stream: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{COMMON_HEADERS}Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut told = 0;
    loop {
        let state = shared.lock();
        let waited = shared
            .changed
            .wait_timeout_while(state, HEARTBEAT, |state| state.step == told && !state.has_ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (step, has_ended) = (state.step, state.has_ended);
        drop(state);
        let text = match (has_ended, step == told) {
            (true, _) => "event: end\ndata: \n\n".to_owned(),
            (false, true) => ": still there\n\n".to_owned(),
            (false, false) => format!("event: step\ndata: {step}\n\n"),
        };
        stream.write_all(text.as_bytes())?;
        stream.flush()?;
        if has_ended {
            return Ok(());
        }
        told = step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, headers: &str) -> Result<What, &'static str> {
        requested(&format!("GET {path} HTTP/1.1\r\n{headers}\r\n\r\n"), "secret")
    }

    #[test]
    fn only_those_who_know_the_token_and_come_from_here_are_answered() {
        let host = "Host: 127.0.0.1:8080";
        assert_eq!(asked("/secret/", host), Ok(What::Page));
        assert_eq!(asked("/secret/events", host), Ok(What::Events));
        assert_eq!(
            asked("/secret/", "host: localhost:9999\r\nOrigin: http://localhost:9999"),
            Ok(What::Page)
        );
        assert_eq!(asked("/secret/", "Host: [::1]:7"), Ok(What::Page));
        for path in
            ["/", "/secret", "/secre/", "/secrets/", "/SECRET/", "/secret/other", "/secret/../", "//secret/"]
        {
            assert_eq!(asked(path, host), Err("404 Not Found"), "{path}");
        }
        for headers in [
            "",
            "Host: example.org",
            "Host: example.org:80",
            "Host: localhost.example.org",
            "Host: 127.0.0.1.example.org:80",
            "Host: localhost:80:80@evil",
            "Host: localhost\r\nHost: example.org",
            "Host: localhost\r\nOrigin: https://example.org",
            "Host: localhost\r\nOrigin: null",
            "Host: localhost\r\nOrigin: http://example.org",
        ] {
            assert_eq!(asked("/secret/", headers), Err("403 Forbidden"), "{headers}");
        }
        assert_eq!(
            requested("POST /secret/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "secret"),
            Err("405 Method Not Allowed")
        );
    }

    #[test]
    fn tokens_differ() {
        let (one, other) = (token(), token());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
