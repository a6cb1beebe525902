// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// testSubscribe streams changes of the hub to a script with a user's token.
func testSubscribe(t *testing.T, at *computer, hub string) {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "watches-clusters"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, Verbs: []string{"watch"}}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "watches-clusters"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "local:alice"}},
	}
	if err := errors.Join(at.system.hub.Client.Create(t.Context(), role), at.system.hub.Client.Create(t.Context(), binding)); err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(at.ca)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	secured := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	token := func(more ...string) string {
		out, err := at.drover(t, append([]string{"token", "create", "--description", "a stream", "--ttl", "1h"}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "token-") {
				return strings.TrimSpace(line)
			}
		}
		t.Fatalf("token create prints %q", out)
		return ""
	}
	dial := func(token string) (*websocket.Conn, *http.Response, error) {
		return (&websocket.Dialer{TLSClientConfig: secured}).Dial("wss"+strings.TrimPrefix(hub, "https")+"/v1/subscribe?kind=clusters", http.Header{"Authorization": {"Bearer " + token}})
	}
	everywhere := token()
	conn, response, err := dial(everywhere)
	if err != nil {
		t.Fatalf("the stream is answered with %v (%v)", response, err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience * 30 * time.Second))
	for seen := false; !seen; {
		_, message, err := conn.ReadMessage()
		if err != nil {
			t.Fatalf("the Cluster was not in the stream: %v", err)
		}
		if bytes.Contains(message, []byte("token-")) {
			t.Errorf("a message has a token: %.200s", message)
		}
		seen = bytes.Contains(message, []byte(`"CHANGED"`)) && bytes.Contains(message, []byte(`"name":"member","namespace":"default"`))
	}
	if _, response, err := dial(token("--cluster", "default/member")); err == nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("a token for one Cluster is answered with %v", response)
	}
	t.Run("the check of Rancher's operators says 101", func(t *testing.T) {
		address, err := url.Parse(hub)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", address.Host, secured)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "GET /v3/subscribe HTTP/1.1\r\nHost: rancher.yourdomain.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Key: SGVsbG8sIHdvcmxkIQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer %s\r\n\r\n", everywhere)
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience * 30 * time.Second))
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 101") {
			t.Errorf("the answer is %q (%v)", line, err)
		}
	})
}
