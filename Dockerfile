# The image of every role: `convoke coordinator`, `convoke worker`, `convoke run`.
# Two stages, written for the classic builder too (no mounts, no syntax line).

FROM rust:1.95-bookworm AS build
WORKDIR /src
# Lines would be stripped below.
ENV CARGO_PROFILE_RELEASE_DEBUG=false

# The dependencies alone, with empty crates in the place of ours: this layer is rebuilt only when a manifest
# or the lock file changes. One COPY per crate, because a COPY of several files keeps no folders.
COPY Cargo.toml Cargo.lock ./
COPY graph/Cargo.toml graph/
COPY graph/functions/Cargo.toml graph/functions/
COPY common/Cargo.toml common/
COPY models/Cargo.toml models/
COPY rendezvous/Cargo.toml rendezvous/
COPY worker/Cargo.toml worker/
COPY worker/cuda/Cargo.toml worker/cuda/
COPY worker/kernels/Cargo.toml worker/kernels/
COPY coordinator/Cargo.toml coordinator/
COPY client/Cargo.toml client/
COPY cli/Cargo.toml cli/
COPY conformance/Cargo.toml conformance/
COPY sims/Cargo.toml sims/
COPY examples/custom-device/Cargo.toml examples/custom-device/
COPY examples/custom-op/Cargo.toml examples/custom-op/
RUN set -e; sed -i '/^\[\[\(bench\|test\|example\)\]\]/,/^$/d' */Cargo.toml */*/Cargo.toml; \
    for manifest in */Cargo.toml */*/Cargo.toml; do \
      src="$(dirname "$manifest")/src"; mkdir "$src"; \
      case "$src" in cli/*|conformance/*) echo 'fn main() {}' >"$src/main.rs";; *) touch "$src/lib.rs";; esac; \
    done; \
    cargo build --release --locked --package convoke-cli

COPY . .
# Sources older than the empty crates' outputs would look already built.
RUN find . -name '*.rs' -path '*/src/*' -exec touch {} + \
 && cargo build --release --locked --package convoke-cli \
 && strip --strip-debug -o /convoke target/release/convoke

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/convoke --shell /usr/sbin/nologin convoke \
 && install -d -o convoke -g convoke -m 0700 /var/lib/convoke \
 && install -d -o convoke -g convoke -m 0755 /run/convoke /run/convoke/tokens \
    /run/convoke/tokens/worker /run/convoke/tokens/client
COPY --from=build /convoke /usr/local/bin/convoke
USER convoke
WORKDIR /var/lib/convoke
EXPOSE 7070/udp 7070/tcp
ENTRYPOINT ["convoke"]
CMD ["--help"]
