//! Whatever comes over a wormhole: frames, packets, hellos. Nothing panics, and what decodes encodes to the same
//! bytes.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tunnelto_lib::{
    hello::{ClientHello, ServerHello},
    packet::Packet,
    ws::{Decoder, Message, Role},
};

fuzz_target!(|data: &[u8]| {
    if let Ok(packet) = Packet::decode(Bytes::copy_from_slice(data)) {
        assert_eq!(Packet::decode(packet.encode()), Ok(packet));
    }
    let _ = serde_json::from_slice::<ClientHello>(data);
    let _ = serde_json::from_slice::<ServerHello>(data);
    for role in [Role::Server, Role::Client] {
        let mut decoder = Decoder::new(role);
        let mut buffer = BytesMut::from(data);
        while let Ok(Some(message)) = decoder.decode(&mut buffer) {
            if let Message::Binary(bytes) = message {
                let _ = Packet::decode(bytes);
            }
        }
    }
});
