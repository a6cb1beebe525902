// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// caller sends requests to one server, as client-go does: a bearer token, HTTP/2 over TLS, connections kept.
type caller struct {
	base string
	http *http.Client
}

func newCaller(base string, ca []byte, token string) (*caller, error) {
	return callerFor(&rest.Config{Host: base, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
}

func callerFor(config *rest.Config) (*caller, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", config.Host, err)
	}
	return &caller{base: config.Host, http: client}, nil
}

// send sends a request and returns an answer of status 200, whose body the caller must close.
func (c *caller) send(ctx context.Context, method, path, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, said)
	}
	return response, nil
}

// get reads an answer to its end.
func (c *caller) get(ctx context.Context, path string) error {
	response, err := c.send(ctx, http.MethodGet, path, "")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	return nil
}

// text returns an answer.
func (c *caller) text(ctx context.Context, path string) (string, error) {
	response, err := c.send(ctx, http.MethodGet, path, "")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", path, err)
	}
	return string(text), nil
}

// lines hands on each line of an answer until it ends.
func (c *caller) lines(ctx context.Context, path string, each func([]byte) error) error {
	response, err := c.send(ctx, http.MethodGet, path, "")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for body := bufio.NewReader(response.Body); ; {
		line, err := body.ReadBytes('\n')
		if err == nil {
			err = each(line)
		}
		if err != nil {
			return fmt.Errorf("get %s: %w", path, err)
		}
	}
}

// patch merges a change into an object.
func (c *caller) patch(ctx context.Context, path, change string) error {
	response, err := c.send(ctx, http.MethodPatch, path, change)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// block is how long each of some requests took, and all of them.
type block struct {
	each []time.Duration
	all  time.Duration
}

// repeat gets a path n times, so many at once.
func (c *caller) repeat(ctx context.Context, path string, n, atOnce int) (block, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([]time.Duration, n)
	var next atomic.Int64
	var running sync.WaitGroup
	begun := time.Now()
	for range atOnce {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				start := time.Now()
				if err := c.get(ctx, path); err != nil {
					cancel(err)
				}
				took[i] = time.Since(start)
			}
		})
	}
	running.Wait()
	return block{each: took, all: time.Since(begun)}, context.Cause(ctx)
}
