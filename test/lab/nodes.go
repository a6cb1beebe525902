// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// egressConfiguration makes the API server connect to nodes, pods and services through a proxy.
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

// nodeArgs returns the flags of an API server for real nodes.
func (p *ControlPlane) nodeArgs() ([]string, error) {
	nodes := p.options.Nodes
	socket, err := json.Marshal(nodes.EgressSocket)
	if err != nil {
		return nil, err
	}
	egress := p.pkiFile("egress.yaml")
	return []string{
		"--advertise-address=" + nodes.Address,
		// The advertised address must not be a loopback address. Otherwise, the Service "kubernetes" would have no
		// endpoint.
		"--endpoint-reconciler-type=lease",
		"--egress-selector-config-file=" + egress,
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + p.pkiFile("kubelet-client.crt"),
		"--kubelet-client-key=" + p.pkiFile("kubelet-client.key"),
		"--kubelet-certificate-authority=" + p.pkiFile("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP",
		// Service addresses are not routed, so the API server connects to webhooks and aggregated APIs at the
		// addresses of their pods.
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

// Subject is the subject of a certificate. If Hosts is set, the certificate is valid for a server.
type Subject struct {
	User   string
	Groups []string
	Hosts  []string
}

// Certificate is a certificate that a plane's authority has signed, together with its key and the authority's
// certificate. All of them are PEM.
type Certificate struct{ Cert, Key, CA []byte }

// IssueCertificate signs a certificate with the authority of the plane whose Options.Dir is dir. The plane does not
// have to be running.
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
