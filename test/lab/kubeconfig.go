// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig returns a kubeconfig for a user with the given credential. It has a single context, which is named after
// the plane.
func (p *ControlPlane) kubeconfig(user string, credential *clientcmdapi.AuthInfo) ([]byte, error) {
	userName := p.options.Name + "-" + user
	config := clientcmdapi.NewConfig()
	config.Clusters[p.options.Name] = &clientcmdapi.Cluster{
		Server: p.URL(), CertificateAuthorityData: p.pki.cluster.certPEM,
	}
	config.AuthInfos[userName] = credential
	config.Contexts[p.options.Name] = &clientcmdapi.Context{Cluster: p.options.Name, AuthInfo: userName}
	config.CurrentContext = p.options.Name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig of %s for %s: %w", p.options.Name, user, err)
	}
	return content, nil
}

// Kubeconfig returns the kubeconfig of the administrator, who is a member of system:masters. All credentials are
// embedded.
func (p *ControlPlane) Kubeconfig() []byte { return append([]byte(nil), p.admin...) }

// WriteKubeconfig writes the administrator's kubeconfig to a file that only its owner can read.
func (p *ControlPlane) WriteKubeconfig(path string) error {
	path, err := filepath.Abs(path)
	if err == nil {
		err = writeFileAtomic(path, p.admin, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", p.options.Name, err)
	}
	return nil
}

// UserKubeconfig returns the kubeconfig of one of Options.Users.
func (p *ControlPlane) UserKubeconfig(name string) ([]byte, error) {
	for _, user := range p.options.Users {
		if user.Name == name {
			return p.kubeconfig(name, &clientcmdapi.AuthInfo{Token: user.Token})
		}
	}
	return nil, fmt.Errorf("write kubeconfig of %s: there is no user %q: name it in Options.Users", p.options.Name, name)
}

// RESTConfig returns the administrator's configuration, without a client-side rate limit. The caller may modify it.
func (p *ControlPlane) RESTConfig() *rest.Config { return rest.CopyConfig(p.rest) }

func restConfig(kubeconfig []byte) (*rest.Config, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	return config, nil
}
