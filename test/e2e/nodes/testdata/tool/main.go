// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package main is the program in the pods of the stories: a server, a client, and a few commands of a shell.
package main

import (
	"archive/tar"
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

const usage = "tool serve | get URL | read FILE... | append FILE TEXT | wait DURATION | load URL CA TOKENFILE; as tar: cf - PATH | xmf - -C DIR"

func main() {
	if err := run(filepath.Base(os.Args[0]), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tool:", err)
		os.Exit(1)
	}
}

func run(name string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if name == "tar" { // kubectl cp runs it
		return archive(args)
	}
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx)
	case len(args) == 2 && args[0] == "get":
		return get(ctx, args[1])
	case len(args) > 1 && args[0] == "read":
		return read(args[1:])
	case len(args) == 3 && args[0] == "append":
		return appendTo(args[1], args[2])
	case len(args) == 2 && args[0] == "wait":
		return wait(ctx, args[1])
	case len(args) == 4 && args[0] == "load":
		return load(ctx, args[1], args[2], args[3])
	}
	return errors.New(usage)
}

// serve serves the pod's name on port 8080.
func serve(ctx context.Context) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, name, "serves")
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	server := &http.Server{Addr: ":8080", Handler: handler, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// read prints the first of the files that exists.
func read(paths []string) error {
	var errs []error
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil {
			_, err = os.Stdout.Write(content)
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, text)
	return errors.Join(err, f.Close())
}

func wait(ctx context.Context, duration string) error {
	d, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return nil
}

// archive implements the part of tar that "kubectl cp" uses for a single file.
func archive(args []string) error {
	if len(args) == 3 && args[0] == "cf" && args[1] == "-" {
		return pack(args[2])
	}
	if len(args) == 4 && args[1] == "-" && args[2] == "-C" {
		return extract(args[3])
	}
	return fmt.Errorf("tar %q: %s", args, usage)
}

func pack(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	out := tar.NewWriter(os.Stdout)
	if err := out.WriteHeader(&tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err = out.Write(content)
	return errors.Join(err, out.Close())
}

func extract(dir string) error {
	in := tar.NewReader(os.Stdin)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(dir, filepath.Base(header.Name)))
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}
