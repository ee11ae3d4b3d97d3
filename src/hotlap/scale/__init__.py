"""How a command behaves at other sizes: of its batch, its sequences, any numeric option."""
