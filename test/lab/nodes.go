// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// egressConfiguration makes the API server reach nodes, pods and services through a proxy.
const egressConfiguration = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %s
`

// nodeArgs are the flags of an API server that real nodes join.
func (p *ControlPlane) nodeArgs() ([]string, error) {
	nodes := p.options.Nodes
	socket, err := json.Marshal(nodes.EgressSocket)
	if err != nil {
		return nil, err
	}
	egress := p.pkiFile("egress.yaml")
	return []string{
		"--advertise-address=" + nodes.Address,
		// The address is not a loopback address, so that the Service "kubernetes" gets its endpoint.
		"--endpoint-reconciler-type=lease",
		"--egress-selector-config-file=" + egress,
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + p.pkiFile("kubelet-client.crt"),
		"--kubelet-client-key=" + p.pkiFile("kubelet-client.key"),
		"--kubelet-certificate-authority=" + p.pkiFile("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP",
		// No route leads to the addresses of Services, so the API server calls webhooks and aggregated APIs at their pods'
		// addresses.
		"--enable-aggregator-routing",
		"--requestheader-client-ca-file=" + p.pkiFile(frontProxy+"-ca.crt"),
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p.pkiFile(frontProxy+".crt"),
		"--proxy-client-key-file=" + p.pkiFile(frontProxy+".key"),
	}, writeFileAtomic(egress, fmt.Appendf(nil, egressConfiguration, socket), 0o600)
}

// A Subject is the subject of a certificate. With Hosts the certificate is valid for a server.
type Subject struct {
	User   string
	Groups []string
	Hosts  []string
}

// A Certificate has a certificate signed by a plane's authority, its key and the authority's certificate, as PEM.
type Certificate struct{ Cert, Key, CA []byte }

// IssueCertificate signs a certificate with the authority of the plane whose Options.Dir is dir, whether it runs or
// not.
func IssueCertificate(dir string, subject Subject) (Certificate, error) {
	ca, err := openAuthority(filepath.Join(dir, "pki"), "ca")
	if err != nil {
		return Certificate{}, err
	}
	pair, err := ca.issue(identity{user: subject.User, groups: subject.Groups, hosts: subject.Hosts})
	if err != nil {
		return Certificate{}, err
	}
	return Certificate{Cert: pair.cert, Key: pair.key, CA: ca.certPEM}, nil
}
