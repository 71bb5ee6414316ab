//! TLS, client certificates and tokens, on daemons as they are started.

mod conformance;
mod ground;
mod identities;
mod operators;
mod reload;
mod silent;
mod suite;
