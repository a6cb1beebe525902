// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Context is a kubeconfig context that connects to an API server as its administrator.
type Context struct {
	Name      string
	Namespace string
	Env       *Env
}

// Kubeconfig writes a kubeconfig with the given contexts and returns its path. The first context is the current one.
func Kubeconfig(t testing.TB, contexts ...Context) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.CurrentContext = contexts[0].Name
	for _, c := range contexts {
		admin := c.Env.Config
		config.Clusters[c.Name] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
		config.AuthInfos[c.Name] = &clientcmdapi.AuthInfo{
			ClientCertificateData: admin.CertData, ClientKeyData: admin.KeyData}
		config.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: c.Name, Namespace: c.Namespace}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}
