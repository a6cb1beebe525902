// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// check returns nil when its condition is met.
type check func(context.Context) error

// readiness returns a check that determines whether a program is ready. It also returns a function that must be
// called when the check is no longer used.
func (p *ControlPlane) readiness(program string) (check, func(), error) {
	client, err := p.client(program)
	if err != nil {
		return nil, nil, err
	}
	url := p.URL() + "/readyz"
	switch program {
	case Etcd:
		url = loopbackURL(p.ports.etcd.port) + "/health"
	case ControllerManager:
		url = p.URL() + "/api/v1/namespaces/default/serviceaccounts/default"
	}
	ready := func(ctx context.Context) error { return get(ctx, client, url) }
	return ready, client.CloseIdleConnections, nil
}

// client returns an HTTP client with the administrator's credentials. For etcd, it has the API server's credentials.
func (p *ControlPlane) client(program string) (*http.Client, error) {
	if program != Etcd {
		return rest.HTTPClientFor(p.rest)
	}
	cert, err := tls.LoadX509KeyPair(p.pkiFile("etcd-client.crt"), p.pkiFile("etcd-client.key"))
	if err != nil {
		return nil, fmt.Errorf("load the certificate for etcd: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.pki.etcd.cert)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}, nil
}

// get returns an error that contains the server's response, unless the status is 200.
func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
