//! Instances that share the work show what one process shows, bit for bit; over librdkafka's broker in the process.

#![cfg(feature = "kafka")]
#![expect(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

mod support;

use support::{Fleet, Input};

/// As many instances with every role, fed by turns.
async fn shows_the_same(instances: usize) {
    let input = Input::new(60);
    let mut fleet = Fleet::new();
    for _ in 0..instances {
        fleet.join().await;
    }
    fleet.ready().await;
    for number in 0..input.len() {
        fleet.send(number % instances, &input.request(number)).await;
        if number % 5 == 0 {
            // Twice, by way of another.
            fleet.send((number + 1) % instances, &input.request(number)).await;
        }
    }
    fleet.shows(&input.replayed()).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_shows_what_a_replay_shows() {
    shows_the_same(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_show_what_a_replay_shows() {
    shows_the_same(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_instances_show_what_a_replay_shows() {
    shows_the_same(3).await;
}
