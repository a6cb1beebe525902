// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// Proxy chooses the proxy of a request, as http.ProxyFromEnvironment does.
type Proxy func(*http.Request) (*url.URL, error)

// FetchBundle returns a Fetch that asks PathCACerts without verifying the server. It sends nothing secret, and its caller keeps
// only certificates whose checksum it knows.
func FetchBundle(proxy Proxy) Fetch {
	return func(ctx context.Context, server string) ([]byte, error) {
		transport := &http.Transport{
			Proxy:             proxy,
			DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{
				MinVersion:         tls.VersionTLS13,
				InsecureSkipVerify: true, //nolint:gosec // what comes is checked against pinned checksums
			},
		}
		client := &http.Client{Transport: transport, Timeout: 15 * time.Second, CheckRedirect: refuseRedirect}
		bundle, err := get(ctx, client, server+protocol.PathCACerts)
		if err != nil {
			return nil, fmt.Errorf("fetch CA bundle: %w", err)
		}
		return bundle, nil
	}
}

func refuseRedirect(*http.Request, []*http.Request) error {
	return errors.New("redirected: set " + protocol.EnvServer + " to the hub's final URL")
}

func get(ctx context.Context, client *http.Client, target string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", target, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, protocol.MaxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer of %s: %w", target, err)
	case len(body) > protocol.MaxBody:
		return nil, fmt.Errorf("%s answered more than %d bytes", target, protocol.MaxBody)
	}
	return body, nil
}
