// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// readers is the number of concurrent GET requests.
	readers = 4
	// pause is the interval between the requests of one reader. The load is similar to the load of people, because the
	// machine also has other work.
	pause = 40 * time.Millisecond
	// requestLimit is how long a request may take on a busy machine.
	requestLimit = 30 * time.Second
)

// load gets url until it is stopped, using a bearer token. It prints the number of requests and the requests that
// failed.
func load(ctx context.Context, url, ca, tokenFile string) error {
	bundle, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("%s has no certificate", ca)
	}
	client := &http.Client{
		Timeout:   requestLimit,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true},
	}
	var done, failed atomic.Int64
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for ; ctx.Err() == nil; rest(ctx) {
				if err := getAs(client, url, strings.TrimSpace(string(token))); err != nil {
					failed.Add(1)
					fmt.Fprintln(os.Stdout, time.Now().Format(time.TimeOnly), err)
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	_, err = fmt.Fprintf(os.Stdout, "%d of %d requests failed\n", failed.Load(), done.Load())
	return err
}

func rest(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func getAs(client *http.Client, url, token string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return errors.Join(err, resp.Body.Close())
}
