// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

type access struct {
	name, user  string
	server      string
	ca          []byte // PEM
	bearerToken string
}

func (a access) write(path string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[a.name] = &clientcmdapi.Cluster{Server: a.server, CertificateAuthorityData: a.ca}
	config.AuthInfos[a.user] = &clientcmdapi.AuthInfo{Token: a.bearerToken}
	config.Contexts[a.name] = &clientcmdapi.Context{Cluster: a.name, AuthInfo: a.user}
	config.CurrentContext = a.name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", a.user, err)
	}
	return writeFile(path, content)
}

// writeAccountKubeconfig writes a kubeconfig that a program outside a control plane uses to act as its
// ServiceAccount.
func (d *demo) writeAccountKubeconfig(ctx context.Context, p *plane, namespace, account, path string) error {
	token, err := p.tokenFor(ctx, namespace, account)
	if err != nil {
		return err
	}
	return access{name: account, user: account, server: p.config.Host, ca: p.config.CAData, bearerToken: token}.write(path)
}
