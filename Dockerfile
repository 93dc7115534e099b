FROM debian:bookworm-slim AS build

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates python3-venv \
    && rm -rf /var/lib/apt/lists/*

# The build backend, the only thing that a build needs beyond the interpreter, stays in its own venv; /opt/venv is what
# the final image gets.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/venv

WORKDIR /src
COPY constraints.txt ./
RUN /opt/build/bin/pip install --no-cache-dir --constraint constraints.txt hatchling

COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
COPY rules rules
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/build/bin/pip --python /opt/venv/bin/python install --no-cache-dir --constraint constraints.txt /dist/*.whl


FROM debian:bookworm-slim

# The interpreter and its standard library; no pip, no compiler, no nft: the proxy speaks netlink to the kernel.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-minimal libpython3-stdlib \
    && rm -rf /var/lib/apt/lists/*

COPY --from=build /opt/venv /opt/venv

ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

ENTRYPOINT ["kube-proxy-nft"]
CMD ["run"]
