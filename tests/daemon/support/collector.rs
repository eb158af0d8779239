//! A scripted endpoint like a collector's: it accepts everything, unless the next requests are to be answered otherwise.

#![allow(dead_code, reason = "no test needs all of it")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it was received, its body without gzip.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedExport {
    pub path: String,
    pub head: String,
    pub body: Vec<u8>,
}

pub(crate) struct Collector {
    pub url: String,
    told: Arc<Mutex<Vec<ReceivedExport>>>,
    replies: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::answering(|_| Vec::new())
    }

    /// An endpoint whose successful answers have a message.
    pub(crate) fn answering(answer: impl Fn(&ReceivedExport) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let collector = Self { url, told: Arc::default(), replies: Arc::default() };
        let (told, replies) = (collector.told.clone(), collector.replies.clone());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // A client that went away has said nothing.
                let Ok(request) = read(&stream) else { continue };
                told.lock().unwrap().push(request.clone());
                let reply = replies.lock().unwrap().pop_front();
                let reply = reply.unwrap_or_else(|| http("200 OK", "", &answer(&request)));
                drop(stream.write_all(&reply));
            }
        });
        collector
    }

    /// All requests so far.
    pub(crate) fn told(&self) -> Vec<ReceivedExport> {
        self.told.lock().unwrap().clone()
    }

    /// One more request is answered so.
    pub(crate) fn replies(&self, status: &str, headers: &str, body: &[u8]) {
        self.replies.lock().unwrap().push_back(http(status, headers, body));
    }

    /// It is down for this many requests.
    pub(crate) fn is_down_for(&self, requests: usize) {
        (0..requests)
            .for_each(|_| self.replies("503 Service Unavailable", "Retry-After: 0\r\n", &[]));
    }
}

fn read(stream: &TcpStream) -> std::io::Result<ReceivedExport> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
    // What only asks has no body.
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    reader.read_exact(&mut body)?;
    if lower.contains("content-encoding: gzip\r\n") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*body).read_to_end(&mut plain)?;
        body = plain;
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(ReceivedExport { path, head, body })
}

fn http(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/x-protobuf\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}
