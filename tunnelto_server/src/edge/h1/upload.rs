//! The request's body, from the visitor to the stream.

use std::time::Instant;

use bytes::BytesMut;
use tunnelto_lib::read_buffer::ReadBuffer;

use super::{carry::Progress, framing::Body};
use crate::{io::Timer, limits::VISITOR_STALL, socket::ReadHalf, upstream::Upstream};

/// What is left of a body, and where it comes from.
pub struct Upload<'a> {
    pub body: &'a mut Body,
    pub buffer: &'a mut ReadBuffer,
    /// Keeps what is sent, while the stream may turn out to be dead.
    pub keep: Option<&'a mut BytesMut>,
}

pub enum UploadError {
    /// Not a body by RFC 9112 section 7.1: the visitor's fault.
    Malformed,
    /// The visitor left, or sent nothing for too long.
    VisitorGone,
    /// The stream takes no more; whether that is a failure, the answer tells.
    StreamEnded,
}

impl Upload<'_> {
    pub async fn run(
        mut self,
        visitor: &mut ReadHalf<'_>,
        stream: &Upstream,
        progress: &Progress,
    ) -> Result<(), UploadError> {
        let mut timer = Timer::default();
        while !self.body.is_done() {
            stream.ready().await.map_err(|_| UploadError::StreamEnded)?;
            if self.buffer.bytes.is_empty() {
                match timer.within(VISITOR_STALL, self.buffer.fill(visitor)).await {
                    Ok(Ok(count)) if count > 0 => {}
                    _ => return Err(UploadError::VisitorGone),
                }
            }
            let count = self.body.take(&self.buffer.bytes).map_err(|_| UploadError::Malformed)?;
            let piece = self.buffer.bytes.split_to(count).freeze();
            progress.bytes_in.set(progress.bytes_in.get() + count as u64);
            if let Some(kept) = &mut self.keep {
                kept.extend_from_slice(&piece);
            }
            stream.send(piece).map_err(|_| UploadError::StreamEnded)?;
            progress.last_upload.set(Some(Instant::now()));
        }
        progress.uploaded.set(true);
        Ok(())
    }
}
