//! Signatures, so that a receiver knows the sender of a call, and that the call is not a replay.
//!
//! ```text
//! X-Agentgauge-Timestamp: Unix seconds
//! X-Agentgauge-Signature: v1= + hex of HMAC-SHA-256(secret, timestamp + "." + body)
//! X-Agentgauge-Delivery:  the same for every attempt at one body
//! ```

use std::fmt::Write;

use ring::hmac::{HMAC_SHA256, Key, sign};
use xxhash_rust::xxh3::xxh3_128;

use crate::secret::Secret;

/// The signature of a body at a time, Unix seconds.
pub(super) fn signature(secret: &Secret, seconds: u64, body: &str) -> String {
    let key = Key::new(HMAC_SHA256, secret.reveal().as_bytes());
    let tag = sign(&key, format!("{seconds}.{body}").as_bytes());
    let mut text = String::from("v1=");
    for byte in tag.as_ref() {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The id of a delivery, which is the same for all attempts at one body.
pub(super) fn delivery(body: &str) -> String {
    format!("{:032x}", xxh3_128(body.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_timestamp_and_body() {
        let secret = Secret::new("key").unwrap();
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac key
        let expected = "v1=a438e398bfafc57e4396bb7fc2304422f0f768e965d073ca313cb52e22e6ad03";
        assert_eq!(signature(&secret, 1_700_000_000, "{\"a\":1}"), expected);
        assert_ne!(signature(&secret, 1_700_000_001, "{\"a\":1}"), expected);
    }
}
