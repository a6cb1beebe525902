// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/untrusted"
)

// hostile starts an API server whose responses consist of a text and n repetitions of another text.
func hostile(t *testing.T, kind, first, again string, n int) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accept := r.Header.Get("Accept"); strings.Contains(accept, "protobuf") {
			t.Errorf("the client accepts %q, want no binary format", accept)
		}
		w.Header().Set("Content-Type", kind)
		out := bufio.NewWriterSize(w, 64<<10)
		_, err := out.WriteString(first)
		for i := 0; i < n && err == nil; i++ {
			_, err = out.WriteString(again)
		}
		_ = out.Flush() // fails if the client has closed the connection
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	(&Options{}).Patient(config)
	return config
}

func TestAServerCannotExhaustThePluginsMemory(t *testing.T) {
	t.Parallel()
	const json, list = "application/json", `{"apiVersion":"cluster.drover.dev/v1","kind":"ClusterList","items":[{}`
	for name, tt := range map[string]struct {
		kind, first, again string
		n                  int
		want               string
	}{
		"many items":   {json, list, ",{}", maxItems, "more than 20000 items"},
		"many nulls":   {json, list, ",null", maxItems, "more than 20000 items"},
		"many labels":  {json, list + `,{"metadata":{"labels":{"a":"b"`, `,"a":"b"`, maxNodes / 2, "4194304 values"},
		"a long name":  {json, list + `,{"metadata":{"name":"`, "12345678", maxBytes / 8, "more than 67108864 bytes"},
		"YAML aliases": {"application/yaml", "a: &a [1]", "\nb: *a", 9, "which is not JSON"},
		"protobuf":     {"application/vnd.kubernetes.protobuf", "k8s\x00", "\n\x00", 9, "which is not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			err := clientOf(t, hostile(t, tt.kind, tt.first, tt.again, tt.n)).List(t.Context(), &v1.ClusterList{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestAnErrorKeepsItsStatusWhateverItsFormat(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"title":"no"}`))
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	(&Options{}).Patient(config)
	if err := clientOf(t, config).List(t.Context(), &v1.ClusterList{}); !apierrors.IsForbidden(err) {
		t.Errorf("got the error %v, want one with the reason Forbidden", err)
	}
}

// clientOf returns a client that knows Drover's kinds without discovery.
func clientOf(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	kinds := runtime.NewScheme()
	if err := v1.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	known := meta.NewDefaultRESTMapper(nil)
	known.Add(v1.GroupVersion.WithKind("Cluster"), meta.RESTScopeNamespace)
	c, err := client.NewWithWatch(config, client.Options{Scheme: kinds, Mapper: known})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAWatchMayBeLongButNotItsEvents(t *testing.T) {
	t.Parallel()
	const event = `{"type":"ADDED","object":{"apiVersion":"cluster.drover.dev/v1","kind":"Cluster"}}` + "\n"
	server := hostile(t, "application/json", "", event, 2*maxItems)
	changes, err := clientOf(t, server).Watch(t.Context(), &v1.ClusterList{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	for i := range 2 * maxItems {
		if got, open := <-changes.ResultChan(); !open || got.Type != "ADDED" {
			t.Fatalf("event %d is %v (%v), want a watch without a limit on its length", i, got.Type, open)
		}
	}
	for name, again := range map[string]string{"a long event": "x", "an event with many values": ",,"} {
		lines := &events{from: bufio.NewReader(endless(again))}
		if _, err := io.Copy(io.Discard, lines); !errors.Is(err, untrusted.ErrTooLarge) {
			t.Errorf("%s: the error is %v, want that the event is too large", name, err)
		}
	}
}

// endless is a text that is repeated.
type endless string

// Read implements io.Reader.
func (e endless) Read(into []byte) (int, error) {
	return copy(into, strings.Repeat(string(e), len(into))), nil
}
