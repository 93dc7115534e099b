"""The words of a rule, each of which knows its nft text and its kernel expressions: rules.objects.Statement.

Matches, marks and priority ask or change something of the packet; tickets change a map; nat and verdicts end a rule.
"""
