//! Kinds of fault that public systems of this kind have had, tried on real daemons over gRPC, on each store they concern.
//! A test bears the name of its kind; its comment says how it was seen to fail.

/// Makes a test of a scenario on each store.
macro_rules! on_each_store {
    ($scenario:ident) => {
        mod $scenario {
            use super::On;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_memory() {
                super::$scenario(On::Memory).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_redis_7() {
                super::$scenario(On::Redis7).await;
            }
        }
    };
}

mod bounds;
mod callers;
mod ending;
mod flow;
pub(crate) mod ground;
mod health;
mod keys;
mod load;
mod names;
mod numbers;
mod outages;
mod start;
