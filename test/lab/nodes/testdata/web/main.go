// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package main serves its pod's name on port 8080. With a URL as its argument, it gets that URL instead and prints the
// response.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	run := serve
	if len(os.Args) > 1 {
		run = get
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, name, "serves")
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	return (&http.Server{Addr: ":8080", Handler: handler, ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

func get() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, os.Args[1], nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return errors.Join(err, resp.Body.Close())
}
