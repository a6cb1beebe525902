// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A machine without a network must notice quickly that it cannot download the tool, and must not compile it first.
func TestNothingIsCompiledIfTheIndexCannotBeRead(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections without answering
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	refuses := httptest.NewServer(http.NotFoundHandler())
	defer refuses.Close()
	for name, url := range map[string]string{
		"a host that does not answer": "http://" + silent.Addr().String(),
		"a port that is closed":       "http://127.0.0.1:1",
		"a host without an index":     refuses.URL,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ran := filepath.Join(dir, "ran")
			tool := filepath.Join(dir, "go")
			if err := os.WriteFile(tool, []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if _, err := (envtestDownload{goTool: tool, version: "1.36.x", index: url}).fetch(t.Context(), dir); err == nil {
				t.Error("the download succeeds, want an error")
			}
			if took, most := time.Since(begin), envtestReachTimeout+5*time.Second; took > most {
				t.Errorf("it took %s, want at most %s", took, most)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the tool was compiled")
			}
		})
	}
}
