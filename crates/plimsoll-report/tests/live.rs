//! The live view, asked as a browser would.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use plimsoll_memory::{GhostPages, Label, Owner, Pool, STEP, Site};
use plimsoll_report::{LiveView, Profiler};
use serde_json::json;

/// Host and path of an address.
fn parts(url: &str) -> (String, String) {
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("an address");
    (host.to_owned(), format!("/{path}"))
}

fn ask(host: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(host).expect("somebody listens");
    stream.write_all(request.as_bytes()).expect("it is read");
    stream
}

fn get(host: &str, path: &str, headers: &str) -> String {
    let mut text = String::new();
    let mut stream = ask(host, &format!("GET {path} HTTP/1.1\r\n{headers}\r\n"));
    stream.read_to_string(&mut text).expect("text");
    text
}

#[test]
fn the_page_is_served_while_the_recording_goes_on() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let pool = Pool::new(GhostPages::new(1 << 40));
    let profiler = Profiler::start(&pool, &path, &json!({ "recipe": "live" })).expect("it can be written");
    let view = LiveView::start(&path, 0).expect("a port is free");
    let (host, root) = parts(&view.url());
    let here = format!("Host: {host}\r\n");
    let label = Label::new(Owner::Saved, Site::intern("src/main.rs", 1, "", "matmul"));
    for step in 1..=3 {
        pool.mark(STEP, step);
        drop(pool.acquire(4096, label).expect("a ghost has room"));
    }
    let page = get(&host, &root, &here);
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{}", &page[..100]);
    for header in [
        "Referrer-Policy: no-referrer",
        "Cache-Control: no-store",
        "connect-src 'self'",
        "X-Frame-Options: DENY",
    ] {
        assert!(page.contains(header), "{header}");
    }
    assert!(page.contains("<title>live: memory</title>") && page.contains("data-live=\"live\""));
    assert!(get(&host, "/0123456789abcdef0123456789abcdef/", &here).starts_with("HTTP/1.1 404"));
    assert!(get(&host, &root, "Host: example.org\r\n").starts_with("HTTP/1.1 403"));
    assert!(get(&host, &root, &format!("{here}Origin: http://example.org\r\n")).starts_with("HTTP/1.1 403"));

    let events = ask(&host, &format!("GET {root}events HTTP/1.1\r\n{here}\r\n"));
    let mut lines = BufReader::new(events).lines().map(|line| line.expect("text"));
    view.step(3);
    assert!(lines.by_ref().any(|line| line == "data: 3"));
    drop(view);
    assert!(lines.any(|line| line == "event: end"));
    drop(profiler);
}

/// Whoever opens connections and says nothing keeps others out for a while, but takes no more than a few threads; a request that
/// does not end is not answered.
#[test]
fn connections_are_bounded() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let view = LiveView::start(&folder.path().join("none.profile"), 0).expect("a port is free");
    let (host, root) = parts(&view.url());
    let answer = |request: &str| {
        let mut text = String::new();
        let mut stream = TcpStream::connect(&host).expect("somebody listens");
        // A connection that is closed at once may say so at any of these.
        let _closed = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut text));
        text
    };
    let plain = format!("GET {root} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(answer(&plain).starts_with("HTTP/1.1 503"), "there is no profile");
    let long = plain.replace("Host", &format!("X: {}\r\nHost", "x".repeat(20_000)));
    assert_eq!(answer(&long), "");
    let _silent: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(&host).expect("somebody listens")).collect();
    assert_eq!(answer(&plain), "", "all places are taken");
}
