// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objectstore

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestGetFailsWhenTheStoreSendsNothing(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "300")
		w.Header().Set("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
		_, _ = w.Write([]byte("snapshot"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	o := Object{Endpoint: strings.TrimPrefix(server.URL, "https://"), Bucket: "snapshots", Key: "f.db"}
	client, err := dial(o,
		Credentials{AccessKey: "a", SecretKey: "b",
			CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})})
	if err != nil {
		t.Fatal(err)
	}
	to, err := os.Create(filepath.Join(t.TempDir(), "to.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if err := receive(t.Context(), client, o, to, 200*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "sent nothing for 200ms") {
		t.Errorf("%v, want it to say that the store sends nothing", err)
	}
}
