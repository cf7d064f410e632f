# RDMA programs in a container without root, devices, and kernel modules:
#
#   docker build -f docs/verbs.Dockerfile -t rdma .
#   docker run --rm --network host rdma ib_write_bw -x 0 -F &
#   docker run --rm --network host rdma ib_write_bw -x 0 -F 127.0.0.1
FROM rust:1.90-bookworm AS build
COPY . /src
RUN /src/scripts/install /opt/isolane

# An image with a newer C library than the one of the first stage works as well.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ibverbs-utils perftest && rm -rf /var/lib/apt/lists/*
# A copy of the directory keeps the links of its libraries, which are one file.
COPY --from=build /opt/isolane /opt/isolane
USER nobody
# In an image with another entry point, `ENV` has the variables that `isolane verbs env` prints:
# ENV LD_PRELOAD=/opt/isolane/lib/isolane-verbs/libibverbs.so.1 LD_LIBRARY_PATH=/opt/isolane/lib/isolane-verbs
ENTRYPOINT ["/opt/isolane/bin/isolane", "verbs", "run", "--"]
CMD ["ibv_devices"]
