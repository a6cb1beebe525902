// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/kube"
)

func TestPodUID(t *testing.T) {
	t.Parallel()
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln\n"
	}
	const bound = `{"sub":"system:serviceaccount:drover-agent:drover-agent","kubernetes.io":{"namespace":"drover-agent",` +
		`"pod":{"name":"a","uid":"7f3c"}}}`
	for name, tc := range map[string]struct{ token, kubeconfig, want string }{
		"the token of a pod says which it is":           {token: token(bound), want: "7f3c"},
		"a kubeconfig may be that of several processes": {token: token(bound), kubeconfig: "/x"},
		"a token that was requested is of no pod": {
			token: token(`{"kubernetes.io":{"namespace":"drover-agent"}}`)},
		"a token that is no JWT says nothing":                  {token: "abc"},
		"a token that cannot be decoded says nothing":          {token: "a.%.c"},
		"a token whose claims are of other types says nothing": {token: token(`{"kubernetes.io":"x"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(tc.token), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := kube.PodUID(&rest.Config{BearerTokenFile: file}, tc.kubeconfig); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	if got := kube.PodUID(&rest.Config{}, ""); got != "" {
		t.Errorf("without a token it is %q", got)
	}
}
