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
# The final file system is read-only where it runs: bytecode that is not there would be made anew at every start. The
# interpreter is told not to compare it with the sources, whose times a copy may change.
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/build/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --constraint constraints.txt \
        /dist/*.whl \
    && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib


FROM debian:bookworm-slim

# The interpreter and its standard library; no pip, no compiler, no nft: the proxy speaks netlink to the kernel. Debian
# compiles a part of this library only.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-minimal libpython3-stdlib \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m compileall -q -j 0 -f --invalidation-mode unchecked-hash \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

COPY --from=build /opt/venv /opt/venv

ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1

# As root: the kernel gives CAP_NET_ADMIN to no other user's program unless its file has it, and what runs with
# no_new_privs does not get it from there either. deploy/ takes all other capabilities away.
ENTRYPOINT ["kube-proxy-nft"]
CMD ["run"]
