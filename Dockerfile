# syntax=docker/dockerfile:1

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
# The caches keep the compiled dependencies between builds; the files that are copied out of them stay in the layer.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --bin paceway \
    && install -D target/dist/paceway /out/paceway \
    && strip /out/paceway

# glibc, the certificate authorities and a user without rights; no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/paceway /paceway
# In a container, set `listen: 0.0.0.0:8080`; `admin: 0.0.0.0:9090` only where another container scrapes it.
# Certificates and secrets are mounted; the user (65532) must be able to read them.
EXPOSE 8080 9090
# Asks /readyz on 127.0.0.1:9090. With another `admin` port, change it to: paceway health --admin 127.0.0.1:PORT.
HEALTHCHECK --interval=5s --timeout=4s --start-period=5s --retries=3 CMD ["/paceway", "health"]
ENTRYPOINT ["/paceway"]
CMD ["run", "--config", "/etc/paceway/paceway.yaml"]
