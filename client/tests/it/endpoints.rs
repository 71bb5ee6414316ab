//! Where a client may connect to.

use budget_client::{Client, Error};

use crate::{LONG, fake::Fake, original, payments};

#[tokio::test]
async fn endpoints_are_judged() {
    for good in
        ["http://127.0.0.1:7411", "http://[::1]:7411/", "http://budgetd.internal:80", "unix:/run/b.sock", "unix:b"]
    {
        assert!(Client::new(good).is_ok(), "{good}");
    }
    let bad = [
        "",
        "localhost",
        "127.0.0.1:7411",
        "http://127.0.0.1",
        "http://:7411",
        "https://127.0.0.1",
        "redis://127.0.0.1:7411",
        "http://user:secret@127.0.0.1:7411",
        "http://127.0.0.1:7411/path",
        "http://127.0.0.1:7411?q=1",
        "http://127.0.0.1:99999",
        "http://a b:1",
        "unix:",
        "unix://",
        "unix:\0",
        "http://\u{1b}[2J:1",
    ];
    for endpoint in bad {
        let error = Client::new(endpoint).unwrap_err();
        assert!(matches!(&error, Error::Unsendable(invalid) if invalid.field() == "endpoint"), "{endpoint}: {error}");
        assert!(
            error.to_string().ends_with("must look like http://host:port, https://host:port or unix:PATH"),
            "{error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn a_client_outside_of_a_runtime_is_refused_not_a_panic() {
    assert!(matches!(Client::new("http://127.0.0.1:7411"), Err(Error::NoRuntime)));
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let mut name = std::env::temp_dir();
    let unique = budget_client::reservation_id().unwrap();
    name.push(format!("budget-client-{unique:?}.sock"));
    let client = Client::new(&format!("unix:{}", name.display())).unwrap();
    let error = client.reserve(&payments(), &original(1), LONG).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    Fake::new().serve_unix(&name);
    let reserved = client.reserve(&payments(), &original(1), LONG).await;
    std::fs::remove_file(&name).unwrap();
    assert!(reserved.is_ok(), "{reserved:?}");
}
