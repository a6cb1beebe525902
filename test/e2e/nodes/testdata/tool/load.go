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
	// readers is how many GETs load has in progress.
	readers = 4
	// pause is between two of one reader: the load is that of people, and the machine has more to do.
	pause = 40 * time.Millisecond
	// requestLimit is how long one may take on a machine that does much else.
	requestLimit = 30 * time.Second
)

// load gets url until it is told to stop, as the bearer of a token, and says how many requests there were and which of
// them failed.
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
