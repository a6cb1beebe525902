// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package main is the program in the demo's pods: an HTTP server, an HTTP client, and the commands that the guide's
// plans use.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// upgradeTakes is how long an upgrade takes, so that users can watch it. Upgrades of simulated nodes take just as
	// long.
	upgradeTakes = 5 * time.Second
	requestLimit = 10 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	name := filepath.Base(os.Args[0])
	err := run(ctx, name, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// run runs the program with the given name.
func run(ctx context.Context, name string, args []string, out io.Writer) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	switch {
	case name == "web" && len(args) == 0:
		return serve(ctx, host, out)
	case name == "get" && len(args) == 1:
		return get(ctx, args[0], out)
	case name == "upgrade" && len(args) == 0:
		fmt.Fprintf(out, "upgrading %s\n", os.Getenv("SYSTEM_UPGRADE_NODE_NAME"))
		return wait(ctx, upgradeTakes)
	case name == "sleep" && len(args) == 1:
		takes, err := sleepTime(args[0])
		if err != nil {
			return err
		}
		return wait(ctx, takes)
	case name == "false":
		return errors.New("this always fails")
	}
	return fmt.Errorf("unexpected arguments %q: there are web, get URL, upgrade, sleep SECONDS and false", args)
}

// sleepTime parses a number of seconds, or a number with a unit.
func sleepTime(text string) (time.Duration, error) {
	parsed, err := time.ParseDuration(text)
	if err != nil {
		parsed, err = time.ParseDuration(text + "s")
	}
	if err != nil || strings.HasPrefix(text, "-") {
		return 0, fmt.Errorf("invalid time interval '%s'", text)
	}
	return parsed, nil
}

func wait(ctx context.Context, takes time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(takes):
		return nil
	}
}

// serve responds to each request with the name of the pod, until ctx ends.
func serve(ctx context.Context, host string, out io.Writer) error {
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: requestLimit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(out, "%s %s\n", r.Method, r.URL.Path)
		fmt.Fprintln(w, host)
	})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Fprintf(out, "%s serves\n", host)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func get(ctx context.Context, url string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(out, resp.Body)
	return err
}
