# Builds clusterd as scripts/build does, and packs it with the host tools that upstream's kube-proxy calls.
#   docker build -t clusterd .
#   docker run --init --privileged --cgroupns=host -v clusterd:/var/lib/clusterd clusterd server
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
RUN scripts/build /out/clusterd

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates nftables iptables && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/clusterd /usr/local/bin/clusterd
VOLUME /var/lib/clusterd
ENTRYPOINT ["/usr/local/bin/clusterd"]
