//! New certificates: when the files are read again, and what replaces nothing.

use super::{Authority, connect, pair, said, start};
use crate::support::{Conn, Gateway, Upstream, eventually, request};
use rstest::rstest;
use std::fs;
use tokio::net::TcpStream;
use tokio_rustls::{client::TlsStream, rustls::pki_types::CertificateDer};

fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let chain = stream.get_ref().1.peer_certificates().expect("a certificate");
    chain[0].clone().into_owned()
}

/// Connects to the gateway, and returns the certificate that it shows now.
async fn now_shown(gateway: &Gateway, authority: &Authority) -> CertificateDer<'static> {
    shown(&connect(gateway, authority.client(&[]), "a.example").await.expect("a handshake"))
}

const AGAIN: &str = "certificates read again";

const BAD: &str = "new certificates cannot be used; the old ones stay";

#[rstest]
#[case::in_place(false)]
#[case::behind_links_that_are_swapped(true)]
#[tokio::test(flavor = "multi_thread")]
async fn new_files_are_used_without_a_restart(#[case] linked: bool) {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let (authority, path) = (Authority::new(), directory.path());
    let (one, two, now) = (path.join("1"), path.join("2"), path.join("now"));
    fs::create_dir(&one).expect("a directory");
    fs::create_dir(&two).expect("a directory");
    std::os::unix::fs::symlink("1", &now).expect("a link");
    let first = authority.write(&one, "a.example");
    let gateway = start(&upstream, &format!("{{ {} }}", pair(&now, "a.example")), "").await;
    assert_eq!(now_shown(&gateway, &authority).await, first);
    let mut old = Conn::over(
        connect(&gateway, authority.client(&[]), "a.example").await.expect("a handshake"),
    );
    let second = if linked {
        let second = authority.write(&two, "a.example");
        std::os::unix::fs::symlink("2", path.join("next")).expect("a link");
        fs::rename(path.join("next"), &now).expect("a swap");
        second
    } else {
        authority.write(&one, "a.example")
    };
    eventually("the new one is shown", async || {
        (now_shown(&gateway, &authority).await == second).then_some(())
    })
    .await;
    eventually("the log says so", async || (said(&gateway, AGAIN) > 0).then_some(())).await;
    // A connected client stays connected.
    old.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(old.answer().await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_certificate_replaces_nothing() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let (authority, path) = (Authority::new(), directory.path());
    let first = authority.write(path, "a.example");
    let gateway = start(&upstream, &format!("{{ {} }}", pair(path, "a.example")), "").await;
    fs::write(path.join("a.example.key"), "no key").expect("write");
    eventually("it is said", async || (said(&gateway, BAD) == 1).then_some(())).await;
    let events = gateway.events();
    let event = events.iter().find(|event| event["message"] == BAD).expect("seen above");
    assert_eq!(event["level"], "ERROR");
    assert!(event["file"].as_str().is_some_and(|file| file.ends_with("a.example.key")), "{event}");
    assert_eq!(now_shown(&gateway, &authority).await, first);
    // On demand too, though nothing has changed since.
    gateway.signal("HUP");
    eventually("it is said again", async || (said(&gateway, BAD) == 2).then_some(())).await;
    assert_eq!(now_shown(&gateway, &authority).await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_the_files_at_once() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let (authority, path) = (Authority::new(), directory.path());
    authority.write(path, "a.example");
    let gateway = start(&upstream, &format!("{{ {} }}", pair(path, "a.example")), "").await;
    gateway.signal("HUP");
    eventually("it is said", async || (said(&gateway, AGAIN) == 1).then_some(())).await;
}
