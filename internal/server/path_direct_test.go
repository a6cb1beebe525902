// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/direct"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/test/agenttest"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// benchDirect serves users without the hub, through a forward path. It returns its address and a token.
func benchDirect(t *testing.T, kubernetes http.Handler) (address, bearer string) {
	key, err := keys.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	published, err := json.Marshal(keys.Set{key}.JWKS())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(protocol.DirectAccess{
		Issuer: "https://hub", Audience: "https://hub/k8s/clusters/bench/member", Keys: published, Lifetime: 3600,
		ValidUntil: time.Now().Add(time.Hour), Host: "127.0.0.1",
	})
	if err != nil {
		t.Fatal(err)
	}
	api := agenttest.NewAPIServer(t)
	api.Put(t, "/api/v1/namespaces/drover-agent/secrets/"+protocol.DirectSecret, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "drover-agent",
			Name: protocol.DirectSecret}, Data: map[string][]byte{protocol.DirectKey: raw},
	})
	client, err := kube.New(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	if address, err = lab.FreeAddress("127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	go direct.New(direct.Options{
		Secrets: client.Secrets("drover-agent"), Listen: address, Kubernetes: kubernetes, Changed: func() {}, Now: time.Now,
		Log: logr.Discard(),
	}).Run(t.Context())
	dialer := &tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{InsecureSkipVerify: true}}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // until it serves
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	bearer, err = token.SignFor(time.Hour, key, token.Claims{
		Issuer: "https://hub", Subject: "local:alice", Audience: jwt.Audience{"https://hub/k8s/clusters/bench/member"},
		Session: "s", UID: "u",
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return "https://" + address, bearer
}
