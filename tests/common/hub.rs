//! A Hugging Face hub on this machine, with one repository.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Longest wait for the other side of a connection within this machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Files from this length on are called by their SHA-256, as those that the hub keeps elsewhere.
const LARGE: usize = 4096;

/// A hub that serves the files of a folder as the repository `some/model`, at [`FakeHub::COMMIT`].
pub struct FakeHub {
    /// Where it is.
    pub address: String,
    /// The paths that it was asked for.
    pub asked: Arc<Mutex<Vec<String>>>,
}

/// What the hub does otherwise than it should.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Nothing.
    None,
    /// One byte of this file is another one.
    Wrong(&'static str),
    /// This file ends after half of it, whatever is asked for.
    Half(&'static str),
    /// It takes nobody without this token.
    Gated(&'static str),
    /// It says that this is a file's path.
    Path(&'static str),
    /// It says that this is the commit.
    Commit(&'static str),
}

impl FakeHub {
    /// The commit that every revision is at.
    pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// Starts the hub, which ends with the process.
    pub fn new(files: &Path, fault: Fault) -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = format!("http://{}", listener.local_addr().expect("it has an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (files, log) = (files.to_owned(), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (files, log) = (files.clone(), Arc::clone(&log));
                // Whoever asked may be gone before the answer is.
                thread::spawn(move || stream.and_then(|stream| serve(&stream, &files, fault, &log)).ok());
            }
        });
        FakeHub { address, asked }
    }
}

fn serve(mut stream: &TcpStream, files: &Path, fault: Fault, log: &Mutex<Vec<String>>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().unwrap().push(path.clone());
    let header = |name: &str| {
        let find = |line: &String| {
            Some(line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name))?.1.to_owned())
        };
        headers.iter().find_map(find)
    };
    if let Fault::Gated(token) = fault
        && header("authorization") != Some(format!("Bearer {token}"))
    {
        return write!(stream, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let commit = FakeHub::COMMIT;
    if let Some(json) = answer(&path, files, fault) {
        let json = json.to_string();
        return write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{json}",
            json.len()
        );
    }
    let name = path.strip_prefix("/some/model/resolve/").and_then(|rest| rest.split_once('/'));
    let file = name.filter(|(revision, _)| *revision == commit).map(|(_, name)| name);
    let Some(mut bytes) = file.and_then(|name| fs::read(files.join(name)).ok()) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let first =
        header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let (first, len): (usize, usize) = (first.unwrap_or(0), bytes.len());
    match fault {
        Fault::Wrong(wrong) if file == Some(wrong) => bytes[len / 2] ^= 1,
        Fault::Half(half) if file == Some(half) => bytes.truncate(len / 2),
        _ => {}
    }
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{}/{len}\r\n\
         Connection: close\r\n\r\n",
        len - first,
        len - 1,
    )?;
    stream.write_all(bytes.get(first..).unwrap_or_default())
}

/// What the interface for programs says.
fn answer(path: &str, files: &Path, fault: Fault) -> Option<Value> {
    let rest = path.strip_prefix("/api/models/some/model/")?;
    if let Some(revision) = rest.strip_prefix("revision/") {
        let commit = if let Fault::Commit(commit) = fault { commit } else { FakeHub::COMMIT };
        return ["main", "v1", FakeHub::COMMIT]
            .contains(&revision)
            .then(|| json!({"sha": commit, "id": "some/model"}));
    }
    (rest == format!("tree/{}", FakeHub::COMMIT)).then(|| tree(files, fault))
}

fn tree(files: &Path, fault: Fault) -> Value {
    let mut entries = vec![json!({"type": "directory", "oid": "ab".repeat(20), "size": 0, "path": "onnx"})];
    let paths = fs::read_dir(files).into_iter().flatten().flatten().map(|entry| entry.path());
    let paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    for path in paths {
        let (name, bytes) = (path.file_name().unwrap().to_str().unwrap(), fs::read(&path).unwrap());
        let mut entry = json!({"type": "file", "path": name, "size": bytes.len(), "oid": git_sha1(&path)});
        if bytes.len() >= LARGE {
            let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            entry["lfs"] = json!({"oid": sha256, "size": bytes.len(), "pointerSize": 134});
        }
        if let Fault::Path(wrong) = fault {
            entry["path"] = wrong.into();
        }
        entries.push(entry);
    }
    entries.into()
}

/// What Git calls a file's content.
fn git_sha1(path: &Path) -> String {
    let output = std::process::Command::new("git").arg("hash-object").arg("--no-filters").arg(path).output();
    let output = output.expect("git is installed");
    String::from_utf8(output.stdout).expect("a hash is text").trim().to_owned()
}
