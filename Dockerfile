# One image has all programs: /manager and /drover-provisioner for the hub, /drover-agent for members, and
# /drover-host-agent, which the manager serves to machines that join.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=v0.1.0-dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ENV CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH
RUN go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/manager . \
 && go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/drover-provisioner ./cmd/drover-provisioner \
 && go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/drover-agent ./agent \
 && go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/drover-host-agent ./cmd/drover-host-agent

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/manager /out/drover-provisioner /out/drover-agent /out/drover-host-agent /
USER 65532:65532
ENTRYPOINT ["/manager"]
