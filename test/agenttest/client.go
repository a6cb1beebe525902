// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/kube"
)

// Client returns a client of the agent whose requests are served by h. It opens no connections, so it also works in a
// bubble of testing/synctest.
func Client(t testing.TB, h http.Handler) *kube.Client {
	t.Helper()
	client, err := kube.New(&rest.Config{Host: "http://apiserver", Transport: transport{h}, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Answer writes an object, or the status of an error, in the same way as an API server.
func Answer(w http.ResponseWriter, object any) {
	status := apierrors.APIStatus(nil)
	if err, is := object.(error); is && errors.As(err, &status) {
		body := status.Status()
		body.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer(w, int(body.Code), body)
		return
	}
	answer(w, http.StatusOK, object)
}

// Decode decodes the object in the body of a request, in JSON or protobuf.
func Decode(r *http.Request, into any) error {
	content, err := decode(r)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// transport passes requests to a handler in the same process.
type transport struct{ handler http.Handler }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, out := io.Pipe()
	w := &pipeWriter{header: http.Header{}, body: out, begun: make(chan struct{})}
	served := r.Clone(r.Context())
	if served.Body == nil {
		served.Body = http.NoBody
	}
	go func() {
		t.handler.ServeHTTP(w, served)
		w.WriteHeader(http.StatusOK)
		_ = out.Close() // never fails
	}()
	ended := context.AfterFunc(r.Context(), func() { _ = out.CloseWithError(r.Context().Err()) })
	select {
	case <-w.begun:
		return &http.Response{StatusCode: w.status, Header: w.header, Body: body, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
	case <-r.Context().Done():
		ended()
		_ = body.Close() // never fails
		return nil, r.Context().Err()
	}
}

// pipeWriter is the response of a handler. It can be read while the handler writes it.
type pipeWriter struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	status int
	begun  chan struct{} // closed with the header
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.header = status, w.header.Clone()
		close(w.begun)
	})
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush implements http.Flusher. It does nothing, because the response is not buffered.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }
