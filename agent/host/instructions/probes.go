// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxProbeBody is how much of the response to a probe is read, in bytes.
const maxProbeBody = 64 << 10

// watchProbe runs a probe repeatedly until ctx is done, and calls the changed function whenever the probe begins to
// succeed or fail. The probe is initially considered failing.
func watchProbe(ctx context.Context, root string, probe protocol.HostProbe, changed func(successful bool)) {
	threshold, failures, successful := cmp.Or(probe.FailureThreshold, protocol.DefaultProbeFailures), 0, false
	for {
		err := tryProbe(ctx, root, probe)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			failures = 0
			if !successful {
				successful = true
				changed(true)
			}
		case successful:
			if failures++; failures >= threshold {
				successful = false
				changed(false)
			}
		}
		if !await.Time(ctx, probe.Period()) {
			return
		}
	}
}

// tryProbe makes one attempt. It uses a new connection, because certificates and servers change between attempts.
func tryProbe(ctx context.Context, root string, probe protocol.HostProbe) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Timeout())
	defer cancel()
	config, err := probeTLS(root, probe)
	if err != nil {
		return err
	}
	// No proxy is used, because the target of a probe is on this machine.
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, DialContext: dialLoopback}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, probe.URL, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxProbeBody))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// dialLoopback dials an address. If a loopback address refuses the connection, dialLoopback tries the loopback address
// of the other IP family. On a machine with a single IP family, services listen only on the address of that family.
func dialLoopback(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{}
	conn, err := dialer.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	host, port, split := net.SplitHostPort(address)
	other := map[string]string{"127.0.0.1": "::1", "::1": "127.0.0.1"}[host]
	if split != nil || other == "" {
		return nil, err
	}
	conn, errOther := dialer.DialContext(ctx, network, net.JoinHostPort(other, port))
	if errOther != nil {
		return nil, err // the error for the loopback address that the probe specifies
	}
	return conn, nil
}

func probeTLS(root string, probe protocol.HostProbe) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if probe.CAFile != "" {
		bundle, err := os.ReadFile(filepath.Join(root, probe.CAFile))
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, errors.New("no certificate in the CA file")
		}
	}
	if probe.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(root, probe.CertFile), filepath.Join(root, probe.KeyFile))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
