//! `tunnelto http TARGET`: one tunnel, kept open until the user stops it.

use std::{rc::Rc, time::Duration};

use tokio::{signal::unix, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::HttpOptions,
    config::Config,
    error::ClientError,
    local::dial::Dialer,
    tunnel::Tunnel,
    ui::{Event, Ui},
};

/// How long open answers may take to finish when the user stops the client.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn run(target: Option<&str>, options: &HttpOptions) -> Result<(), ClientError> {
    let config = Config::new(target, options)?;
    let dialer = Rc::new(Dialer::new(config.target.clone()).map_err(ClientError::Configuration)?);
    let (stop, stop_now) = stop_on_signals()?;
    if config.require_target {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            dialled = dialer.dial() => dialled.map_err(|error| ClientError::TargetDown(error.to_string()))?,
        };
    }
    let tunnel = Tunnel::new(config, dialer, Ui::new(options.output), stop, stop_now);
    if let Err(error) = tunnel.clone().keep_open().await {
        tunnel.ui.borrow_mut().failed(&error);
        return Err(error);
    }
    tunnel.ui.borrow_mut().tell(&Event::Stopped { reason: "by the user" });
    Ok(())
}

/// The first signal stops, the second stops now, and so does patience.
fn stop_on_signals() -> Result<(CancellationToken, CancellationToken), ClientError> {
    let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    let signal = |kind| {
        unix::signal(kind).map_err(|error| ClientError::Unexpected(format!("cannot hear signals: {error}")))
    };
    let mut interrupt = signal(unix::SignalKind::interrupt())?;
    let mut terminate = signal(unix::SignalKind::terminate())?;
    let tokens = (stop.clone(), stop_now.clone());
    tokio::task::spawn_local(async move {
        let mut next = async || tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () };
        next().await;
        stop.cancel();
        tokio::select! { () = next() => {}, () = sleep(PATIENCE) => {} }
        stop_now.cancel();
    });
    Ok(tokens)
}
