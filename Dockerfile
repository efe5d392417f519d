# The server in a small image: no shell, no root, data in /data.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY tunnelto_lib tunnelto_lib
COPY tunnelto_server tunnelto_server
COPY tunnelto_client tunnelto_client
COPY tests tests
RUN cargo build --release --locked --bin tunnelto_server && mkdir /data

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/tunnelto_server /usr/local/bin/tunnelto_server
COPY --from=build --chown=65532:65532 /data /data
ENV DATA_DIR=/data
VOLUME /data
EXPOSE 8080 5000
HEALTHCHECK --interval=15s --timeout=5s --start-period=5s CMD ["/usr/local/bin/tunnelto_server", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/tunnelto_server"]
