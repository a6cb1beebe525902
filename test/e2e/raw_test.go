// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/test/testkit"
)

// tlsToHub trusts only the hub's CA.
func (s *system) tlsToHub(t *testing.T) *tls.Config {
	t.Helper()
	bundle, err := s.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
}

// fetch requests a URL of the hub without credentials. It returns an error if the status is not 200.
func (s *system) fetch(t *testing.T, url string) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t, 10*time.Second), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: s.tlsToHub(t), DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// say sends bytes to the hub unchanged and returns the response.
func (s *system) say(t *testing.T, request string) (int, string) {
	t.Helper()
	conn, err := (&tls.Dialer{Config: s.tlsToHub(t)}).DialContext(within(t, 20*time.Second), "tcp", s.hub.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience * 20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(conn, request) }() // the response may come before all is sent
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%.100q: %v", request, err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body) // a refusal may end early
	return response.StatusCode, string(body)
}

// line returns a request as demo without a body.
func line(request string, headers ...string) string {
	return request + " HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + demoToken + "\r\nConnection: close\r\n" + strings.Join(headers, "") + "\r\n"
}

func testRawRequests(t *testing.T, s *system) {
	cluster, _ := s.ready(t, "raw")
	other, _ := s.ready(t, "raw-other")
	t.Run("an honest request is served", func(t *testing.T) {
		if code, body := s.say(t, line("GET "+prefix(cluster)+"/api/v1/namespaces/kube-system")); code != http.StatusOK {
			t.Errorf("got %d: %s, want 200", code, body)
		}
	})
	t.Run("no path leads out of its prefix", func(t *testing.T) { testPaths(t, s, cluster, other) })
	t.Run("no request makes its sender another user", func(t *testing.T) { testSmuggling(t, s, cluster) })
	t.Run("what is too large is refused", func(t *testing.T) { testSizes(t, s, cluster) })
}

func prefix(cluster types.NamespacedName) string { return "/k8s/clusters/" + cluster.String() }

func testPaths(t *testing.T, s *system, cluster, other types.NamespacedName) {
	member, hub := prefix(cluster), "https://"+s.hub.Address
	for _, request := range []string{
		"GET " + member + "/../raw-other/api/v1/namespaces/kube-system",
		"GET " + member + "/%2e%2e/raw-other/api/v1/namespaces/kube-system",
		"GET " + member + "/.%2E/raw-other/api/v1/namespaces/kube-system",
		"GET " + member + "/..%2fraw-other/api/v1/namespaces/kube-system",
		"GET " + member + "/..\\raw-other/api/v1/namespaces/kube-system",
		"GET " + member + "/../../../../healthz",
		"GET " + member + "/./api",
		"GET " + member + "//api/v1/namespaces/kube-system",
		"GET " + member + "/%2fapi/v1/namespaces/kube-system",
		"GET /k8s/clusters/default%2fraw/api/v1/namespaces/kube-system",
		"GET /k8s/clusters/default/r%61w/api/v1/namespaces/kube-system",
		"GET /k8s/clusters//default/raw/api",
		"GET //k8s/clusters/default/raw/api",
		"GET /k8s//clusters/default/raw/api",
		"GET /k8s/clusters/default/raw/../../../local/api",
		"GET /k8s/localhost/api",
		"GET /k8s/local/../clusters/default/raw/api",
		"GET /k8s/local/%2e%2e/clusters/default/raw/api",
		"GET /v1/../k8s/clusters/default/raw/api",
		"GET /%6b8s/../k8s/clusters/default/raw/api",
		"GET " + hub + member + "/api/v1/namespaces/kube-system",
		"GET " + hub + member + "/../" + other.Name + "/api",
		"GET http://169.254.169.254/latest/meta-data",
		"CONNECT 127.0.0.1:22",
		"CONNECT " + member + "/api",
		"TRACE " + member + "/api",
		"GET " + member + "/api/v1/namespaces/kube-system\x00",
	} {
		t.Run(strings.ReplaceAll(request, "/", "|"), func(t *testing.T) {
			code, body := s.say(t, line(request))
			if code/100 != 4 && (code/100 != 3 || strings.Contains(body, "kube-system")) {
				t.Errorf("got %d: %s, want 4xx, or 3xx that leads nowhere", code, body)
			}
		})
	}
}

// testSmuggling tests for CVE-2021-31999 and similar vulnerabilities.
func testSmuggling(t *testing.T, s *system, cluster types.NamespacedName) {
	request := "GET " + prefix(cluster) + "/api/v1/namespaces/kube-system"
	const asAdmin = "Impersonate-User: system:admin\r\n"
	for name, headers := range map[string][]string{
		"a user to act as that Connection names":     {asAdmin, "Connection: Impersonate-User\r\n"},
		"the same beside keep-alive, in odd case":    {asAdmin, "Connection: keep-alive, iMPERSONATE-uSER\r\n"},
		"a group to act as that Connection names":    {asAdmin, "Impersonate-Group: system:masters\r\n", "Connection: Impersonate-Group\r\n"},
		"its own Authorization in Connection":        {"Connection: Authorization\r\n"},
		"a user to act as":                           {asAdmin},
		"a user to act as in odd case":               {"iMpErSoNaTe-uSeR: system:admin\r\n"},
		"two users to act as":                        {"Impersonate-User: hub:demo\r\n", asAdmin},
		"a group without a user":                     {"Impersonate-Group: system:masters\r\n"},
		"a header that impersonates nothing we know": {"Impersonate-Nonsense: x\r\n"},
		"two credentials":                            {"Authorization: Bearer " + strangerToken + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, body := s.say(t, line(request, headers...)); code/100 != 4 {
				t.Errorf("got %d: %s, want 4xx", code, body)
			}
		})
	}
	t.Run("what a front proxy would say is not believed", func(t *testing.T) {
		who := line("POST "+prefix(cluster)+"/apis/authentication.k8s.io/v1/selfsubjectreviews",
			"X-Remote-User: system:admin\r\n", "X-Remote-Group: system:masters\r\n", "Content-Type: application/json\r\n", "Content-Length: 2\r\n") + "{}"
		code, body := s.say(t, who)
		if code != http.StatusCreated || !strings.Contains(body, `"username":"hub:demo"`) || strings.Contains(body, "system:masters") {
			t.Errorf("got %d: %s, want 201 for hub:demo without its forged groups", code, body)
		}
	})
}

func testSizes(t *testing.T, s *system, cluster types.NamespacedName) {
	t.Run("a header of 100 KiB gets 431", func(t *testing.T) {
		code, body := s.say(t, line("GET "+prefix(cluster)+"/api", "X-Large: "+strings.Repeat("x", 100<<10)+"\r\n"))
		if code != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("got %d: %s, want 431", code, body)
		}
	})
	post := "POST " + prefix(cluster) + "/api/v1/namespaces/default/configmaps"
	t.Run("a body that says it is too large gets 413 before it comes", func(t *testing.T) {
		code, body := s.say(t, line(post, "Content-Type: application/json\r\n", "Content-Length: 33554432\r\n"))
		if code != http.StatusRequestEntityTooLarge || !strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("got %d: %s, want 413 as a Status", code, body)
		}
	})
	t.Run("a body that turns out to be too large gets 413", func(t *testing.T) {
		chunk := "100000\r\n" + strings.Repeat(" ", 1<<20) + "\r\n"
		code, body := s.say(t, line(post, "Content-Type: application/json\r\n", "Transfer-Encoding: chunked\r\n")+strings.Repeat(chunk, 20)+"0\r\n\r\n")
		if code != http.StatusRequestEntityTooLarge {
			t.Errorf("got %d: %s, want 413", code, body)
		}
	})
	t.Run("a body to join with that is too large gets 413", func(t *testing.T) {
		token := string(s.registrationOf(t, cluster).Data["token"])
		code, body := s.say(t, "POST /v1/register HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer "+token+
			"\r\nContent-Length: 2000000\r\n\r\n{\"publicKey\":\""+strings.Repeat("A", 2000000-14))
		if code != http.StatusRequestEntityTooLarge {
			t.Errorf("got %d: %s, want 413", code, body)
		}
	})
}

func testLocal(t *testing.T, s *system) {
	s.created(t, "local")
	for name, tc := range map[string]struct {
		request, token string
		code           int
		want           string
	}{
		"what demo may see on the hub is shown":                   {"GET /k8s/local/apis/cluster.drover.dev/v1/namespaces/default/clusters/local", demoToken, 200, `"name":"local"`},
		"what demo may not see the hub's API server refuses":      {"GET /k8s/local/api/v1/namespaces/default/secrets", demoToken, 403, `User \"demo\" cannot list`},
		"a stranger is refused by the hub's API server":           {"GET /k8s/local/apis/cluster.drover.dev/v1/namespaces/default/clusters/local", strangerToken, 403, `User \"stranger\" cannot get`},
		"a stranger may see the version":                          {"GET /k8s/local/version", strangerToken, 200, "gitVersion"},
		"a wrong token is refused":                                {"GET /k8s/local/version", "wrong-0123456789abcdef", 401, `"kind":"Status"`},
		"rights in a member are none on the hub (CVE-2022-21953)": {"GET /k8s/local/api/v1/nodes", demoToken, 403, "cannot list"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := s.say(t, strings.Replace(line(tc.request), demoToken, tc.token, 1))
			if code != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("got %d: %s, want another code or text", code, body)
			}
		})
	}
	t.Run("a token in the query or in a cookie does not count", func(t *testing.T) {
		for _, header := range []string{"Cookie: token=" + demoToken + "\r\n", ""} {
			code, body := s.say(t, "GET /k8s/local/version?access_token="+demoToken+" HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n"+header+"\r\n")
			if code != http.StatusUnauthorized {
				t.Errorf("got %d: %s, want 401", code, body)
			}
		}
	})
}
