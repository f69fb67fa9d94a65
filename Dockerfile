# Drover's manager, alone on a distroless base: no shell, no package manager, not root.
#   docker build --build-arg VERSION=v0.1.0-rc.2 -t ghcr.io/drover-io/drover:v0.1.0-rc.2 .
#   docker buildx build --platform linux/amd64,linux/arm64 ...
ARG GO_VERSION=1.26
ARG BASE=gcr.io/distroless/static:nonroot

# The build runs on the builder's own architecture and cross-compiles: no emulation.
FROM --platform=${BUILDPLATFORM:-linux/amd64} golang:${GO_VERSION} AS build
WORKDIR /src
ARG GOPROXY=https://proxy.golang.org,direct
ENV GOPROXY=${GOPROXY}
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS=linux
ARG TARGETARCH=amd64
ARG VERSION=dev
ARG COMMIT=
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" -o /manager . && hack/licenses >/LICENSES.txt

FROM ${BASE}
ARG VERSION=dev
LABEL org.opencontainers.image.source="https://github.com/drover-io/drover" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /manager /LICENSES.txt /
USER 65532:65532
ENTRYPOINT ["/manager"]
