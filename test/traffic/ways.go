// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traffic continuously sends requests, watches and sessions to members through a hub, and records failures.
package traffic

import (
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// requestLimit is the time limit of a request. No request takes nearly as long, even on a busy machine, unless it
// hangs.
const requestLimit = 20 * time.Second

// Hub is the hub to which a user sends requests.
type Hub struct {
	// URL is the base URL, Bundle is the CA bundle to trust, as PEM, and Token is the user's token.
	URL    string
	Bundle []byte
	Token  string
}

// A Way is a client of the hub with its own connections, so that several ways connect to several replicas.
type Way struct {
	hub    Hub
	http2  bool
	client *http.Client
}

// NewWay returns a way that uses HTTP/2, like client-go, or HTTP/1.1.
func NewWay(hub Hub, http2 bool) (*Way, error) {
	w := &Way{hub: hub, http2: http2}
	client, err := rest.HTTPClientFor(w.config(""))
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	w.client = client
	return w, nil
}

// Ways returns the given number of ways of each kind.
func Ways(hub Hub, http2, http1 int) ([]*Way, error) {
	var ways []*Way
	for i := range http2 + http1 {
		way, err := NewWay(hub, i < http2)
		if err != nil {
			return nil, err
		}
		ways = append(ways, way)
	}
	return ways, nil
}

// Close closes idle connections.
func (w *Way) Close() { w.client.CloseIdleConnections() }

// Config returns the configuration of a client for a member. Each client has its own connections.
func (w *Way) Config(cluster types.NamespacedName) *rest.Config { return w.config(memberPath(cluster)) }

// Client returns a client for a member that uses the connections of this way.
func (w *Way) Client(cluster types.NamespacedName) (kubernetes.Interface, error) {
	return kubernetes.NewForConfigAndClient(w.Config(cluster), w.client)
}

func (w *Way) config(path string) *rest.Config {
	config := &rest.Config{
		Host: w.hub.URL + path, BearerToken: w.hub.Token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: w.hub.Bundle},
		Proxy:           http.ProxyFromEnvironment, // also keeps client-go from sharing connections between ways
	}
	if !w.http2 {
		config.NextProtos = []string{"http/1.1"}
	}
	return config
}

func (w *Way) String() string {
	if w.http2 {
		return "HTTP/2"
	}
	return "HTTP/1.1"
}

func memberPath(cluster types.NamespacedName) string { return "/k8s/clusters/" + cluster.String() }
