// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command push-image pushes the image in an OCI layout to a registry.
//
// It is part of a release's offline bundle, so that an administrator needs neither a container engine nor any other
// tool.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "push-image:", err)
		os.Exit(1)
	}
}

// run pushes the image and writes its reference with the digest to out.
func run(ctx context.Context, args []string, out, problems io.Writer) error {
	flags := flag.NewFlagSet("push-image [flags] REGISTRY/NAME:TAG", flag.ContinueOnError)
	flags.SetOutput(problems)
	dir := flags.String("layout", "", "folder of the OCI layout (required)")
	ca := flags.String("ca", "", "file with CA certificates (PEM) to trust in addition to the system's")
	plain := flags.Bool("plain-http", false, "allow connections without TLS")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || flags.NArg() != 1 {
		return errors.New("want -layout and one REGISTRY/NAME:TAG")
	}
	reference, err := parse(flags.Arg(0), *plain)
	if err != nil {
		return err
	}
	client, err := newTransport(*ca, *plain)
	if err != nil {
		return err
	}
	digest, err := push(ctx, *dir, reference, client)
	if err != nil {
		return explain(reference.Context().RegistryStr(), err)
	}
	_, err = fmt.Fprintln(out, reference.Context().Digest(digest.String()))
	return err
}

// parse parses a reference. The reference must contain a registry, because otherwise the library would assume Docker
// Hub.
func parse(text string, plain bool) (name.Tag, error) {
	var options []name.Option
	if plain {
		options = append(options, name.Insecure)
	}
	tag, err := name.NewTag(text, options...)
	if err != nil {
		return name.Tag{}, err
	}
	if !strings.HasPrefix(text, tag.RegistryStr()+"/") {
		return name.Tag{}, fmt.Errorf("%s does not name a registry, such as registry.example.com", text)
	}
	return tag, nil
}

// tlsOnly refuses requests without TLS. For registries with private addresses, the library falls back to plain HTTP
// and would send the password unencrypted.
type tlsOnly struct{ http.RoundTripper }

func (t tlsOnly) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" {
		return nil, errPlain
	}
	return t.RoundTripper.RoundTrip(request)
}

var errPlain = errors.New("a connection without TLS requires --plain-http")

func newTransport(ca string, plain bool) (http.RoundTripper, error) {
	library, ok := remote.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the library has no HTTP transport")
	}
	own := library.Clone()
	if ca != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM format", ca)
		}
		own.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	if plain {
		return own, nil
	}
	return tlsOnly{own}, nil
}

// push pushes the only entry of a layout. Blobs that the registry already has are not pushed again.
func push(ctx context.Context, dir string, to name.Tag, client http.RoundTripper) (v1.Hash, error) {
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("read the layout: %w", err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("read the layout: %w", err)
	}
	if len(manifest.Manifests) != 1 {
		return v1.Hash{}, fmt.Errorf("the layout has %d entries, want 1", len(manifest.Manifests))
	}
	digest := manifest.Manifests[0].Digest
	index, err := outer.ImageIndex(digest)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("read the layout: %w", err)
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(client), remote.WithAuthFromKeychain(authn.DefaultKeychain),
	}
	if err := remote.WriteIndex(to, index, options...); err != nil {
		return v1.Hash{}, err
	}
	if _, err := remote.Head(to.Context().Digest(digest.String()), options...); err != nil {
		return v1.Hash{}, fmt.Errorf("find the image that was pushed: %w", err)
	}
	return digest, nil
}

// explain adds advice for administrators to an error.
func explain(registry string, err error) error {
	var unknown x509.UnknownAuthorityError
	var refused *transport.Error
	advice := ""
	switch {
	case errors.As(err, &unknown):
		advice = ": pass the CA of the registry's certificate with --registry-ca"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		advice = ": the registry does not use TLS, which must be allowed with --plain-http"
	case errors.As(err, &refused) && denied(refused.StatusCode):
		advice = `: put a user who may push into $DOCKER_CONFIG/config.json or ~/.docker/config.json, as "docker login" does`
	}
	return fmt.Errorf("push to %s: %w%s", registry, err, advice)
}

func denied(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}
