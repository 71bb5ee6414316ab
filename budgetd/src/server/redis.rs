//! The Redis store as the daemon runs it: settings judged, health and counters made visible.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use opentelemetry::{KeyValue, metrics::Meter};
use tokio::task::JoinSet;

use crate::{
    config::RedisChoice,
    store::redis::{Config, InvalidConfig, Redis, Settings, State},
    telemetry::Telemetry,
};

/// Judges what was configured.
pub(super) fn judge(choice: &RedisChoice) -> Result<Config, InvalidConfig> {
    let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Config::new(&Settings {
        url: choice.url.reveal().to_owned(),
        prefix: choice.prefix.clone(),
        side_connections: choice.pool_size,
        connect_timeout_ms: ms(choice.connect_timeout),
        wait_timeout_ms: ms(choice.wait_timeout),
        response_timeout_ms: ms(choice.response_timeout),
        ..Settings::default()
    })
}

/// Tells health, readiness and metrics how the store does.
pub(super) fn show(redis: &Arc<Redis>, telemetry: &Arc<Telemetry>, tasks: &mut JoinSet<()>) {
    let mut health = redis.health();
    let (shown, seen) = (Arc::clone(telemetry), Arc::downgrade(redis));
    tasks.spawn(async move {
        loop {
            let state = health.borrow_and_update().state;
            match (state, seen.upgrade().and_then(|redis| redis.too_new())) {
                (State::Up, _) => shown.store.set_up(true),
                (State::Down | State::NeverReached, Some(format)) => shown.store.set_too_new(format),
                (State::Down, None) => shown.store.set_up(false),
                // Not ready before the first contact.
                (State::NeverReached, None) => {}
            }
            if health.changed().await.is_err() {
                return;
            }
        }
    });
    let counter = |name, description, read: fn(&Redis) -> u64| {
        let redis = Arc::clone(redis);
        telemetry.counter(name, description, move || read(&redis));
    };
    counter("budgetd_store_script_calls", "Script calls that applied steps.", |redis| {
        redis.metrics().script_calls.load(Relaxed)
    });
    counter("budgetd_store_steps", "Steps sent to the store.", |redis| redis.metrics().steps.load(Relaxed));
    counter("budgetd_store_stale", "Calls decided again with newer policies.", |redis| {
        redis.metrics().stale.load(Relaxed)
    });
    counter("budgetd_store_noscript_reloads", "Scripts loaded again.", |redis| {
        redis.metrics().noscript_reloads.load(Relaxed)
    });
    counter("budgetd_store_steps_resent", "Steps sent again on a new connection.", |redis| {
        redis.metrics().steps_resent.load(Relaxed)
    });
    counter("budgetd_store_steps_skipped", "Steps never sent: deadline passed or caller gone.", |redis| {
        redis.metrics().steps_skipped.load(Relaxed)
    });
    counter("budgetd_store_overloaded", "Steps refused because a queue was full.", |redis| {
        redis.metrics().overloaded.load(Relaxed)
    });
    counter("budgetd_store_down_milliseconds", "Time the store was down.", |redis| {
        u64::try_from(redis.down_time().as_millis()).unwrap_or(u64::MAX)
    });
    let depth = Arc::clone(redis);
    telemetry.gauge("budgetd_store_queue_depth", "Steps waiting to be sent.", move || {
        depth.metrics().queue_depth.load(Relaxed)
    });
    let format = Arc::clone(redis);
    telemetry.gauge(
        "budgetd_store_format",
        "The format in which the namespace is stored; 0 before it is known.",
        move || u64::from(format.format_found()),
    );
    let gauge = Arc::clone(redis);
    telemetry.gauge("budgetd_store_connections_in_use", "Connections in use.", move || {
        u64::try_from(gauge.connections_in_use()).unwrap_or(u64::MAX)
    });
    errors(telemetry.meter(), Arc::clone(redis));
    redis.metrics().export(telemetry.meter());
}

fn errors(meter: &Meter, redis: Arc<Redis>) {
    meter
        .u64_observable_counter("budgetd_store_errors")
        .with_description("Failures of the store by kind.")
        .with_callback(move |observer| {
            for (kind, count) in redis.metrics().errors() {
                observer.observe(count, &[KeyValue::new("kind", kind.name())]);
            }
        })
        .build();
}
